package rotation

import (
	"crypto/x509"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
)

func testCA(t *testing.T, name string) *pki.CA {
	t.Helper()
	ca, err := pki.NewCA(name, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// TestStates checks that a machine's configuration determines its state and its next step.
func TestStates(t *testing.T) {
	old, next, other := testCA(t, "old").Cert, testCA(t, "next").Cert, testCA(t, "other").Cert
	names := map[*x509.Certificate]string{old: "old", next: "next", other: "other"}
	show := func(h holding) string {
		text := names[h.own] + " +"
		for _, c := range h.accepted {
			text += " " + names[c]
		}
		return text
	}
	list := func(all ...*x509.Certificate) []*x509.Certificate { return all }
	for _, c := range []struct {
		h    holding
		at   state
		then string
	}{
		{holding{own: old}, stateBefore, "old + next"},
		{holding{own: old, accepted: list(next)}, accepted, "next + old"},
		{holding{own: next, accepted: list(old)}, issues, "next +"},
		{holding{own: next}, newOnly, "next +"},
		// Another rotation was abandoned after its first or second step. The trusted CAs of that
		// rotation are dropped only by the last step.
		{holding{own: old, accepted: list(other)}, stateBefore, "old + other next"},
		{holding{own: old, accepted: list(other, next)}, accepted, "next + old other"},
		{holding{own: next, accepted: list(old, other)}, issues, "next +"},
		{holding{own: other, accepted: list(old)}, stateBefore, "other + old next"},
	} {
		if at := c.h.state(next); at != c.at {
			t.Errorf("%s: is in state %d, want %d", show(c.h), at, c.at)
		}
		if then := show(c.h.step(next)); then != c.then {
			t.Errorf("%s: after the next step %s, want %s", show(c.h), then, c.then)
		}
	}
}

// TestAllCertificatesTrusted performs a rotation of three machines, machine by machine, and plans
// the remaining steps again after each step. After each step, each machine must trust the
// certificates of the other machines, including those issued before the latest step.
func TestAllCertificatesTrusted(t *testing.T) {
	old, next := testCA(t, "old").Cert, testCA(t, "next").Cert
	// The second machine does not use the CA, so three machines take part.
	all := []holding{{own: old}, {}, {own: old}, {own: old}}
	taken := 0
	remaining := func() []plannedStep {
		states := make([]progress, len(all))
		for i, h := range all {
			states[i] = progress{at: h.state(next), takesPart: h.own != nil}
		}
		return plan(order(len(all), nil), states)
	}
	for steps := remaining(); len(steps) > 0; steps = remaining() {
		i, at := steps[0].machines[0], steps[0].to-1
		all[i] = all[i].step(next)
		taken++
		for a, h := range all {
			for b, o := range all {
				if h.own == nil || o.own == nil {
					continue
				}
				if !h.trusts(o.own) {
					t.Fatalf("after %d steps, machine %d does not trust a certificate of machine %d", taken, a, b)
				}
			}
			// Before a machine takes the last step, all machines have replaced the certificates
			// that the old CA issued.
			if h.own != nil && at != issues && !h.trusts(old) {
				t.Fatalf("after %d steps, machine %d does not trust the certificates of the old CA", taken, a)
			}
		}
		if taken > 9 {
			t.Fatal("the rotation does not end")
		}
	}
	if taken != 9 {
		t.Errorf("%d steps, want 9", taken)
	}
}

func TestRelated(t *testing.T) {
	old, next, other := testCA(t, "old").Cert, testCA(t, "next").Cert, testCA(t, "other").Cert
	names := []string{"a", "b"}
	for what, c := range map[string]struct {
		all   []holding
		known *x509.Certificate
		ok    bool
	}{
		"the same":                  {[]holding{{own: old}, {own: old}}, old, true},
		"between two steps":         {[]holding{{own: old, accepted: []*x509.Certificate{next}}, {own: next, accepted: []*x509.Certificate{old}}}, old, true},
		"at the end":                {[]holding{{own: next}, {own: next}}, old, true},
		"one without":               {[]holding{{own: old}, {}}, old, true},
		"none with":                 {[]holding{{}, {}}, old, false},
		"two clusters":              {[]holding{{own: old}, {own: other}}, old, false},
		"another file":              {[]holding{{own: old}, {own: old}}, other, false},
		"a file without this CA":    {[]holding{{own: old}, {own: old}}, nil, true},
		"a file that is not so new": {[]holding{{own: next}, {own: next}}, nil, true},
	} {
		if err := related(names, c.all, c.known, next); (err == nil) != c.ok {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestPatch applies each step to a configuration. It merges, parses and redacts the configuration
// like a machine.
func TestPatch(t *testing.T) {
	parsed, problems := config.Parse("reference", []byte(config.Reference))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	parsed.Cluster.Spec.PKI.Accepted = config.Accepted{}
	next := testCA(t, "next")
	key, err := config.ParsePrivateKey(string(next.KeyPEM()))
	if err != nil {
		t.Fatal(err)
	}
	for step := accepted; step <= newOnly; step++ {
		h, err := readHolding(config.MarshalRedacted(parsed), "kubernetes")
		if err != nil || h.own == nil || !h.key {
			t.Fatalf("%+v, %v", h, err)
		}
		patch, err := h.step(next.Cert).patch("kubernetes", h, string(next.KeyPEM()))
		if err != nil {
			t.Fatal(err)
		}
		merged, err := config.Merge(config.Marshal(parsed), patch)
		if err != nil {
			t.Fatal(err)
		}
		if parsed, problems = config.Parse("patched", merged); len(problems) > 0 {
			t.Fatal(problems)
		}
		if h, err = readHolding(config.MarshalRedacted(parsed), "kubernetes"); err != nil || h.state(next.Cert) != step {
			t.Errorf("the machine is in state %d after step %d, %v", h.state(next.Cert), step, err)
		}
	}
	own := parsed.Cluster.Spec.PKI
	if !own.Kubernetes.Key.Equal(key.Secret) || len(own.Accepted.Kubernetes) != 0 {
		t.Error("at the end, the machine does not have the new CA with its key as its only CA")
	}
	// A worker has no key of the CA, and must not get the new key.
	h := holding{own: testCA(t, "old").Cert, accepted: []*x509.Certificate{next.Cert}}
	patch, err := h.step(next.Cert).patch("kubernetes", h, "SECRET")
	if err != nil || strings.Contains(string(patch), "SECRET") {
		t.Errorf("%s, %v", patch, err)
	}
	if _, err := readHolding([]byte("kind: Cluster\nspec: {pki: {kubernetes: {cert: nonsense}}}"), "kubernetes"); err == nil {
		t.Error("accepted invalid documents")
	}
}

func TestPendingFile(t *testing.T) {
	old, next := testCA(t, "old"), testCA(t, "next")
	files := func(leaf *pki.CA) []shownCertificate {
		return []shownCertificate{
			{File: "ca.crt", Authority: true, Serial: pki.Serial(old.Cert)}, {File: "ca.crt", Authority: true, Serial: pki.Serial(next.Cert)},
			{File: "a.crt", IssuerKey: hex.EncodeToString(leaf.Cert.SubjectKeyId)},
		}
	}
	list := func(c *pki.CA) []*x509.Certificate { return []*x509.Certificate{c.Cert} }
	for _, c := range []struct {
		h     holding
		files []shownCertificate
		want  string
	}{
		{holding{own: old.Cert, accepted: list(next)}, files(old)[:1], "no file holds the new CA yet"},
		{holding{own: old.Cert, accepted: list(next)}, files(old), ""},
		{holding{own: next.Cert, accepted: list(old)}, files(old), "a.crt is still issued by the previous CA"},
		{holding{own: next.Cert, accepted: list(old)}, files(next), ""},
		{holding{own: next.Cert}, files(next)[1:], ""},
	} {
		if got := pendingFile(c.h, next.Cert, c.files); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
