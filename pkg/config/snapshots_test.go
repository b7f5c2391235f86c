package config

import (
	"fmt"
	"strings"
	"testing"

	"filippo.io/age"
)

// TestRecipients checks that a list of X25519 keys and a list of hybrid keys are valid. A list with
// both types, an empty list, and a list that is too long are invalid.
func TestRecipients(t *testing.T) {
	var usual, quantum []Recipient
	for range maxRecipients + 1 {
		key, err := age.GenerateX25519Identity()
		check(t, err)
		usual = append(usual, Recipient(key.Recipient().String()))
	}
	for range 2 {
		key, err := age.GenerateHybridIdentity()
		check(t, err)
		quantum = append(quantum, Recipient(key.Recipient().String()))
	}
	for name, c := range map[string]struct {
		recipients []Recipient
		want       string // empty if the list is valid
	}{
		"none":       {nil, "snapshots would be uploaded without encryption"},
		"X25519":     {usual[:maxRecipients], ""},
		"hybrid":     {quantum, ""},
		"both types": {[]Recipient{quantum[0], usual[0]}, "recipients[1]: has another type than the first key"},
		"too many":   {usual, fmt.Sprintf("recipients: %d recipients; expected at most %d", maxRecipients+1, maxRecipients)},
	} {
		cfg := example(t)
		cluster := *cfg.Cluster
		cluster.Spec.Etcd.Snapshots.Recipients = c.recipients
		cfg.Machine.Spec.Role, cfg.Cluster = RoleControlPlane, &cluster
		problems := Check(cfg)
		if text := problems.Error(); c.want == "" && len(problems) > 0 || c.want != "" && (len(problems) != 1 || !strings.Contains(text, c.want)) {
			t.Errorf("%s: %d problems: %s; want %q", name, len(problems), text, c.want)
		}
	}
}

// TestPlace checks that the URL of a target contains the destination with its port, and no secret.
func TestPlace(t *testing.T) {
	target := SnapshotTarget{Bucket: "backups", SecretKey: NewSecret("secret")}
	for _, c := range [][2]string{{"https://S3.example.com/", "https://s3.example.com:443/backups"}, {"https://[::1]:9000", "https://[::1]:9000/backups"}} {
		check(t, target.Endpoint.UnmarshalText([]byte(c[0])))
		if got := target.URL(); got != c[1] {
			t.Errorf("%s: %s, want %s", c[0], got, c[1])
		}
	}
	target.Prefix = "orlop/site-1"
	if got := target.URL(); got != "https://[::1]:9000/backups/orlop/site-1" {
		t.Error(got)
	}
}
