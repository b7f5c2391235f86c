package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestSecretsStaySecret checks that no output of a configuration contains a secret, except that of
// Marshal.
func TestSecretsStaySecret(t *testing.T) {
	c := example(t)
	pki := c.Cluster.Spec.PKI
	var secrets []string
	for _, s := range []Secret{pki.ServiceAccountKey.Secret, pki.Kubernetes.Key.Secret, c.Cluster.Spec.SecretsEncryptionKey.Secret, c.Cluster.Spec.AcceptedEncryptionKeys[0].Secret, c.Cluster.Spec.Kubernetes.Authentication.Webhook.Client.Key.Secret, c.Machine.Spec.Join.Ticket.Key.Secret, c.Machine.Spec.Logging.Receivers[0].Client.Key.Secret, c.Machine.Spec.Egress.Proxy.Password, c.Addons[0].Spec.Registries[0].Password, c.Cluster.Spec.Kubernetes.APIServer.KMS.Transit.AppRole.SecretID, c.Cluster.Spec.Kubernetes.APIServer.KMS.Transit.Certificate.Key.Secret, c.Cluster.Spec.Etcd.Snapshots.Target.AccessKey, c.Cluster.Spec.Etcd.Snapshots.Target.SecretKey} {
		text := s.Reveal()
		secrets = append(secrets, text[len(text)/2:len(text)/2+12])
	}
	hidden := struct {
		Name   string
		hidden Secret
		deep   *Cluster
		key    PrivateKey
	}{"x", pki.ServiceAccountKey.Secret, c.Cluster, pki.Kubernetes.Key}

	var log bytes.Buffer
	logger := slog.New(slog.NewJSONHandler(&log, nil))
	logger.Info("x", "config", c, "cluster", *c.Cluster, "key", pki.ServiceAccountKey, "secret", c.Cluster.Spec.SecretsEncryptionKey.Secret)
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "cluster", *c.Cluster, "key", pki.ServiceAccountKey)
	asJSON, err := json.Marshal(c)
	check(t, err)
	asYAML, err := yaml.Marshal(c.Cluster)
	check(t, err)
	printed := map[string]string{
		"log": log.String(), "JSON": string(asJSON), "YAML": string(asYAML), "MarshalRedacted": string(MarshalRedacted(c)),
		"changes": strings.Join(Changes(nil, c), "\n"), "error": fmt.Errorf("cannot: %v", pki.ServiceAccountKey).Error(),
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
		printed["value "+verb] = fmt.Sprintf(verb, *c.Cluster)
		printed["pointer "+verb] = fmt.Sprintf(verb, c.Cluster)
		printed["unexported "+verb] = fmt.Sprintf(verb, hidden)
		printed["secret "+verb] = fmt.Sprintf(verb, pki.ServiceAccountKey)
	}
	for how, text := range printed {
		for _, secret := range secrets {
			if strings.Contains(text, secret) || strings.Contains(text, fmt.Sprintf("%x", secret)) {
				t.Errorf("%s shows a secret:\n%s", how, text)
			}
		}
	}
	for _, how := range []string{"JSON", "YAML", "MarshalRedacted", "log"} {
		if !strings.Contains(printed[how], Redacted) {
			t.Errorf("%s does not show that a secret was redacted:\n%s", how, printed[how])
		}
	}
	for _, secret := range secrets {
		if !strings.Contains(strings.ReplaceAll(string(Marshal(c)), " ", ""), secret) {
			t.Errorf("Marshal has lost a secret")
		}
	}
}

// TestRedactedIsRefused checks that a redacted configuration of a machine cannot be applied.
func TestRedactedIsRefused(t *testing.T) {
	_, problems := Parse("", MarshalRedacted(example(t)))
	if len(problems) != 23 {
		t.Errorf("got %d problems, want one for each of the 23 secrets:\n%v", len(problems), problems)
	}
	for _, p := range problems {
		if p.Reason != "the secret is redacted in this file" {
			t.Errorf("unexpected: %s", p)
		}
	}
}

func TestSecretEqual(t *testing.T) {
	if !NewSecret("a").Equal(NewSecret("a")) || NewSecret("a").Equal(NewSecret("b")) || NewSecret("a").Equal(Secret{}) || !NewSecret("").IsZero() {
		t.Error("Equal or IsZero is wrong")
	}
	if (Secret{}).String() != "" || NewSecret("a").String() != Redacted {
		t.Error("String is wrong")
	}
}

func TestEncryptionKey(t *testing.T) {
	raw := [32]byte{1, 2, 3}
	if got := NewEncryptionKey(raw).Bytes(); !bytes.Equal(got, raw[:]) {
		t.Errorf("got %v", got)
	}
	if a, b := NewEncryptionKey(raw), NewEncryptionKey([32]byte{1, 2, 4}); a.Name() != NewEncryptionKey(raw).Name() || a.Name() == b.Name() || len(a.Name()) != 8 || (EncryptionKey{}).Name() != "" {
		t.Errorf("names %q and %q of two keys, name %q of an empty key", a.Name(), b.Name(), (EncryptionKey{}).Name())
	}
	if (EncryptionKey{}).Bytes() != nil || (PrivateKey{}).Signer() != nil {
		t.Error("an empty EncryptionKey has bytes, or an empty PrivateKey has a signer")
	}
}
