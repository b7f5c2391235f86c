package ownership

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/audit"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pairing"
	"github.com/orlop-os/orlop/pkg/pki"
)

// TestPair checks that each rejected attempt is recorded, that a busy machine rejects it, and which
// calls an unclaimed machine rejects.
func TestPair(t *testing.T) {
	ca, err := pki.NewCA("operator", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	var log []string
	busy := "a configuration is being applied; try again"
	p := New(Deps{
		Lock:          func() (func(), string) { return func() { log = append(log, "unlocked") }, busy },
		Config:        func() (*config.Config, string) { return nil, "" },
		Unreadable:    func(*config.Config) bool { return true }, // so that nothing is stored
		Record:        func(audit.Call) { log = append(log, "recorded") },
		RecordRefused: func(c audit.Call) { log = append(log, "refused: "+c.Reason) },
		Event:         func(_, message string) { log = append(log, message) },
	})
	p.setUnclaimed(true)
	code, _ := p.Code().Get()
	claim := code.NewClaim(make([]byte, 32), ca.CertPEM())
	r := &api.PairRequest{ChannelBinding: make([]byte, 32), Ca: claim.CA, Proof: claim.Proof, Peer: "10.0.0.1:1"}
	for _, want := range [][]string{
		{"refused: " + busy, "refused to 10.0.0.1:1: " + busy},
		{"unlocked", "refused: the machine is claimed already", "refused to 10.0.0.1:1: the machine is claimed already"},
	} {
		log = nil
		if a := p.Pair(t.Context(), r); a.Refusal == "" || !slices.Equal(log, want) {
			t.Errorf("%v: %q; want %q", a, log, want)
		}
		busy = ""
	}
	if err := p.RejectUnclaimed(api.Machine_Reboot_FullMethodName); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a call to an unclaimed machine: %v", err)
	}
	if err := p.RejectUnclaimed(api.ApidInternal_Pair_FullMethodName); err != nil {
		t.Errorf("the pairing of an unclaimed machine: %v", err)
	}
}

// TestCheck goes through the pairing of an unclaimed machine: a rejected claim stores nothing
// and leaves the code unchanged, and the first valid claim is the last.
func TestCheck(t *testing.T) {
	ca, err := pki.NewCA("operator", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Issue(pki.Spec{CN: "alice", Usage: pki.Client, TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	d := New(Deps{})
	binding := make([]byte, 32)
	kept, failing := 0, error(nil)
	try := func(peer string, code pairing.Code, text []byte) *api.PairResponse {
		claim := code.NewClaim(binding, text)
		return d.check(&api.PairRequest{ChannelBinding: binding, Ca: claim.CA, Proof: claim.Proof, Peer: peer}, func(got []byte) error {
			if failing == nil {
				kept++
			}
			return failing
		})
	}
	if a := try("10.0.0.1:1", "", ca.CertPEM()); !strings.Contains(a.Refusal, "is claimed already") {
		t.Errorf("without a code: %v", a)
	}
	d.setUnclaimed(true)
	code, _ := d.code.Get()
	d.setUnclaimed(true)
	if again, _ := d.code.Get(); again != code || code == "" {
		t.Errorf("the code %q became %q by looking", code, again)
	}
	for i, c := range []struct {
		code pairing.Code
		ca   []byte
		says string
	}{
		{pairing.NewCode(), ca.CertPEM(), "not the code"},
		{code, []byte("garbage"), "the operator's CA: "},
		{code, leaf.CertPEM(), "not a certificate authority"},
		{code, append(ca.CertPEM(), ca.CertPEM()...), "the operator's CA: "},
	} {
		if a := try("10.0.0.1:1", c.code, c.ca); !strings.Contains(a.Refusal, c.says) || a.Proof != nil {
			t.Errorf("case %d: %v", i, a)
		}
	}
	try("10.0.0.1:2", pairing.NewCode(), nil)
	if a := try("10.0.0.1:3", code, ca.CertPEM()); !strings.Contains(a.Refusal, "too many attempts") {
		t.Errorf("after five tries: %v", a)
	}
	failing = errors.New("the disk is full")
	if a := try("10.0.0.2:1", code, ca.CertPEM()); a.Refusal != "the disk is full" || a.Proof != nil {
		t.Errorf("what cannot be kept: %v", a)
	}
	failing = nil
	if now, _ := d.code.Get(); kept != 0 || now != code {
		t.Errorf("%d kept, code %q", kept, now)
	}
	if a := try("10.0.0.2:1", code, ca.CertPEM()); a.Refusal != "" || len(a.Proof) == 0 || kept != 1 {
		t.Errorf("the right one: %v, %d kept", a, kept)
	}
	if a := try("10.0.0.3:1", code, ca.CertPEM()); !strings.Contains(a.Refusal, "is claimed already") || kept != 1 {
		t.Errorf("once more: %v, %d kept", a, kept)
	}
	d.setUnclaimed(true)
	if now, _ := d.code.Get(); now == code || now == "" {
		t.Error("a machine that belongs to nobody again shows the old code")
	}
	d.setUnclaimed(false)
	if now, _ := d.code.Get(); now != "" {
		t.Error("a machine that belongs to somebody shows a code")
	}
}
