package ownership

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/admission/pairing"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/audit"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
)

// TestPair checks that each rejected attempt is recorded with its reason and that only an attempt
// with the right code takes the lock. It also checks which calls an unclaimed machine rejects.
func TestPair(t *testing.T) {
	ca, err := pki.NewCA("operator", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	var log []string
	busy, unreadable := "", false
	p := New(Deps{
		Lock: func() (func(), string) {
			log = append(log, "locked")
			return func() { log = append(log, "unlocked") }, busy
		},
		Config:        func() (*config.Config, string) { return nil, "" },
		Unreadable:    func(*config.Config) bool { return true }, // so a valid claim stores nothing
		Record:        func(audit.Call) { log = append(log, "recorded") },
		RecordRefused: func(c audit.Call) { log = append(log, "refused: "+c.Reason) },
		Event:         func(_, message string) { log = append(log, strings.TrimPrefix(message, "refused to 10.0.0.1:1: ")) },
	})
	p.operators = func(*config.Config) ([]byte, error) {
		if unreadable {
			return nil, errors.New("api: cannot read the operator's CA: input/output error")
		}
		return nil, nil
	}
	attempt := func(code pairing.Code) *api.PairResponse {
		claim := code.NewClaim(make([]byte, 32), ca.CertPEM())
		return p.Pair(t.Context(), &api.PairRequest{ChannelBinding: make([]byte, 32), Ca: claim.CA, Proof: claim.Proof, Peer: "10.0.0.1:1"})
	}
	if a := attempt(pairing.NewCode()); a.Refusal != alreadyClaimed || strings.Join(log, "|") != "refused: "+alreadyClaimed+"|"+alreadyClaimed {
		t.Errorf("an attempt at a claimed machine: %q, %q", a.Refusal, log)
	}
	p.setUnclaimed(true)
	code, _ := p.Code().Get()
	for _, c := range []struct {
		name       string
		code       pairing.Code
		busy       string
		unreadable bool
		says       string
		locks      bool
	}{
		{"a wrong code", pairing.NewCode(), "", false, wrongCode, false},
		{"a busy machine", code, "a configuration is being applied; try again", false, "a configuration is being applied; try again", true},
		{"a CA that cannot be read", code, "", true,
			"pairing: cannot tell whether the machine is claimed: api: cannot read the operator's CA: input/output error; try again, or reboot the machine", true},
		{"an unreadable configuration", code, "", false, alreadyClaimed, true},
		{"a fifth attempt", code, "", false, alreadyClaimed, true},
		{"too many attempts", code, "", false, tooManyAttempts, false},
	} {
		busy, unreadable, log = c.busy, c.unreadable, nil
		want := []string{"refused: " + c.says, c.says}
		if c.says == tooManyAttempts {
			want = want[1:]
		}
		if c.locks && c.busy == "" {
			want = append([]string{"unlocked"}, want...)
		}
		if c.locks {
			want = append([]string{"locked"}, want...)
		}
		if a := attempt(c.code); a.Refusal != c.says || !slices.Equal(log, want) {
			t.Errorf("%s: %q, %q; want %q", c.name, a.Refusal, log, want)
		}
	}
	if err := p.RejectUnclaimed(api.Machine_Reboot_FullMethodName); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a call to an unclaimed machine: %v", err)
	}
	if err := p.RejectUnclaimed(api.ApidInternal_Pair_FullMethodName); err != nil {
		t.Errorf("the pairing of an unclaimed machine: %v", err)
	}
}

// TestCheck checks the pairing of an unclaimed machine: a rejected claim stores nothing and does
// not change the code, and the machine accepts no claim after the first valid claim.
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
		r := &api.PairRequest{ChannelBinding: binding, Ca: claim.CA, Proof: claim.Proof, Peer: peer}
		shown, _ := d.code.Get()
		if refusal := d.check(shown, r); refusal != "" {
			return &api.PairResponse{Refusal: refusal}
		}
		return d.accept(shown, r, func([]byte) error {
			if failing == nil {
				kept++
			}
			return failing
		})
	}
	if a := try("10.0.0.1:1", "", ca.CertPEM()); !strings.Contains(a.Refusal, "is claimed already") {
		t.Errorf("a claimed machine, which has no code: %v", a)
	}
	d.setUnclaimed(true)
	code, _ := d.code.Get()
	d.setUnclaimed(true)
	if again, _ := d.code.Get(); again != code || code == "" {
		t.Errorf("the code %q became %q, although the machine was already unclaimed", code, again)
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
		t.Errorf("after five attempts: %v", a)
	}
	failing = errors.New("the disk is full")
	if a := try("10.0.0.2:1", code, ca.CertPEM()); a.Refusal != "the disk is full" || a.Proof != nil {
		t.Errorf("a CA that cannot be stored: %v", a)
	}
	failing = nil
	if now, _ := d.code.Get(); kept != 0 || now != code {
		t.Errorf("after the rejected claims: %d CAs are stored, and the code is %q", kept, now)
	}
	if a := try("10.0.0.2:1", code, ca.CertPEM()); a.Refusal != "" || len(a.Proof) == 0 || kept != 1 {
		t.Errorf("a valid claim: %v, %d CAs are stored", a, kept)
	}
	if a := try("10.0.0.3:1", code, ca.CertPEM()); !strings.Contains(a.Refusal, "is claimed already") || kept != 1 {
		t.Errorf("a second valid claim: %v, %d CAs are stored", a, kept)
	}
	d.setUnclaimed(true)
	if now, _ := d.code.Get(); now == code || now == "" {
		t.Error("a machine that is unclaimed again has its old code, or no code")
	}
	d.setUnclaimed(false)
	if now, _ := d.code.Get(); now != "" {
		t.Error("a claimed machine has a code")
	}
}
