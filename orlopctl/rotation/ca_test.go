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

// TestStates checks the state and the next step of a rotation that follow from the CAs in the
// configuration of a machine. The texts have the own CA before the plus sign, and the other
// accepted CAs after it.
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
		// Another rotation was abandoned after its first or second step. Only the last step removes
		// the accepted CAs of that rotation.
		{holding{own: old, accepted: list(other)}, stateBefore, "old + other next"},
		{holding{own: old, accepted: list(other, next)}, accepted, "next + old other"},
		{holding{own: next, accepted: list(old, other)}, issues, "next +"},
		{holding{own: other, accepted: list(old)}, stateBefore, "other + old next"},
	} {
		if at := c.h.state(next); at != c.at {
			t.Errorf("%s: the machine is in state %d, want %d", show(c.h), at, c.at)
		}
		if then := show(c.h.step(next)); then != c.then {
			t.Errorf("%s: the next step leads to %s, want %s", show(c.h), then, c.then)
		}
	}
}

// TestAllCertificatesTrusted performs a rotation of three machines. It plans the remaining steps
// again after each step of a machine. After each step, each machine must trust the certificates of
// the other machines, including those that were issued before this step.
func TestAllCertificatesTrusted(t *testing.T) {
	old, next := testCA(t, "old").Cert, testCA(t, "next").Cert
	// The second of four machines does not use the CA, so three machines take part.
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
			// Certificates of the old CA exist until all machines are in the state issues. Only
			// after that, a machine takes the last step.
			if h.own != nil && at != issues && !h.trusts(old) {
				t.Fatalf("after %d steps, machine %d does not trust the certificates of the old CA", taken, a)
			}
		}
		if taken > 9 {
			t.Fatal("the rotation does not end after 9 steps")
		}
	}
	if taken != 9 {
		t.Errorf("the rotation took %d steps, want 9", taken)
	}
}

// TestRelated checks that related accepts machines of one cluster, which trust the CAs of each
// other. It rejects the CA of the file (known) if no machine trusts it and none has the new CA yet.
func TestRelated(t *testing.T) {
	old, next, other := testCA(t, "old").Cert, testCA(t, "next").Cert, testCA(t, "other").Cert
	names := []string{"a", "b"}
	for what, c := range map[string]struct {
		all   []holding
		known *x509.Certificate
		ok    bool
	}{
		"same CA":                                  {[]holding{{own: old}, {own: old}}, old, true},
		"machines in different steps":              {[]holding{{own: old, accepted: []*x509.Certificate{next}}, {own: next, accepted: []*x509.Certificate{old}}}, old, true},
		"all machines with the new CA":             {[]holding{{own: next}, {own: next}}, old, true},
		"one machine without the CA":               {[]holding{{own: old}, {}}, old, true},
		"no machine with the CA":                   {[]holding{{}, {}}, old, false},
		"machines of two clusters":                 {[]holding{{own: old}, {own: other}}, old, false},
		"file with another CA":                     {[]holding{{own: old}, {own: old}}, other, false},
		"file without this CA":                     {[]holding{{own: old}, {own: old}}, nil, true},
		"file without this CA, after the rotation": {[]holding{{own: next}, {own: next}}, nil, true},
	} {
		if err := related(names, c.all, c.known, next); (err == nil) != c.ok {
			t.Errorf("%s: error %v, want success: %t", what, err, c.ok)
		}
	}
}

// TestPatch applies the patch of each step to a configuration, as a machine does, and checks the
// state that results. At the end, the configuration has only the new CA with its key.
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
			t.Errorf("the machine is in state %d after the step to state %d, %v", h.state(next.Cert), step, err)
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
		t.Error("readHolding accepts invalid documents")
	}
}

// TestPendingFile checks the reason for which the files of a machine do not correspond to its CAs
// yet. A file must have the new CA. If the new CA is the own CA of the machine, no certificate may
// be issued by the previous CA any more.
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
			t.Errorf("%+v: got %q, want %q", c.files, got, c.want)
		}
	}
}
