package approvals

import (
	"crypto/ecdsa"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/approval"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
)

const (
	reset   = "/orlop.v1alpha1.Machine/Reset"
	apply   = "/orlop.v1alpha1.Config/Apply"
	machine = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
)

// site is a machine with three approvers.
type site struct {
	config *config.Config
	keys   []*ecdsa.PrivateKey
	floor  time.Time
	file   string
	events []string
}

func newSite(t *testing.T, calls ...config.ApprovalCalls) *site {
	t.Helper()
	s := &site{config: config.New("cp1", config.RoleControlPlane), file: filepath.Join(t.TempDir(), "approvals", "used.json")}
	rule := &config.Approvals{Calls: calls}
	for _, name := range []string{"alice", "bob", "carol"} {
		key, err := pki.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		s.keys = append(s.keys, key)
		rule.Approvers = append(rule.Approvers, config.Approver{Name: name, Key: config.KeyFingerprint(pki.KeyFingerprint(&key.PublicKey))})
	}
	s.config.Machine.Spec.Trust.Approvals = rule
	return s
}

// gate returns a new gate of the machine, as after a boot.
func (s *site) gate() *Gate {
	return New(Deps{
		Config: func() *config.Config { return s.config }, Key: func() string { return machine }, Floor: func() time.Time { return s.floor },
		File: s.file, Event: func(kind, message string) { s.events = append(s.events, kind+": "+message) },
	})
}

// approve returns an approval of alice and bob.
func (s *site) approve(t *testing.T, call string, content map[string]string) []byte {
	t.Helper()
	r, err := approval.NewRequest(call, []approval.Machine{{Name: "cp1", Key: machine}}, content, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	f, err := approval.NewFile(r)
	for _, key := range s.keys[:2] {
		if err == nil {
			f, err = f.Sign(key)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return f.Encode()
}

// wantRejected checks the error of a rejected call: its code, its reason and the next step.
func wantRejected(t *testing.T, err error, reason string) {
	t.Helper()
	s := status.Convert(err)
	if err == nil || s.Code() != codes.FailedPrecondition || !strings.Contains(s.Message(), reason) || !strings.HasSuffix(s.Message(), Remedy) {
		t.Errorf("%v, want %q", err, reason)
	}
}

// TestOnce checks that a call needs an approval, and that an approval is valid once. Each check
// uses a new gate, as after a reboot. The record of a used approval stays in the file until the
// floor is after its expiry, because the clock could be set back to the floor.
func TestOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		content := map[string]string{"wipe": "WIPE_ALL"}
		file := s.approve(t, reset, content)
		_, err := s.gate().Check(config.CallsWipe, reset, content, nil)
		wantRejected(t, err, "two operators must approve it (Machine.spec.trust.approvals)")
		_, err = s.gate().Check(config.CallsWipe, reset, map[string]string{"wipe": "WIPE_DATA"}, file)
		wantRejected(t, err, "the field wipe has another value")
		by, err := s.gate().Check(config.CallsWipe, reset, content, file)
		if err != nil || !slices.Equal(by, []string{"alice", "bob"}) {
			t.Fatal(by, err)
		}
		if want := []string{"operation: the call " + reset + " was approved by alice and bob"}; !slices.Equal(s.events, want) {
			t.Errorf("%q, want %q", s.events, want)
		}
		_, err = s.gate().Check(config.CallsWipe, reset, content, file)
		wantRejected(t, err, "it was already used on this machine")

		// When another approval is used, the gate removes records that have expired before the
		// floor. The first record has expired only by the clock, so it stays.
		time.Sleep(2 * time.Hour)
		if _, err := s.gate().Check(config.CallsWipe, reset, content, s.approve(t, reset, content)); err != nil {
			t.Fatal(err)
		}
		_, err = s.gate().Check(config.CallsWipe, reset, content, file)
		wantRejected(t, err, "it expired at")
		if text, err := os.ReadFile(s.file); err != nil || strings.Count(string(text), `"nonce"`) != 2 {
			t.Errorf("the file has %s, %v; want two records", text, err)
		}
	})
}

// TestFloor checks that an approval has expired if the floor is after its expiry, although the
// clock shows an earlier time.
func TestFloor(t *testing.T) {
	s := newSite(t)
	content := map[string]string{}
	file := s.approve(t, reset, content)
	s.floor = time.Now().Add(2 * time.Hour)
	_, err := s.gate().Check(config.CallsWipe, reset, content, file)
	wantRejected(t, err, "it expired at")
}

// TestRule checks that the rule decides which calls need an approval, and that the rule before a
// change decides about the change.
func TestRule(t *testing.T) {
	s := newSite(t, "wipe")
	if _, err := s.gate().Check(config.CallsEtcd, "/x", nil, nil); err != nil {
		t.Error(err)
	}
	rule := s.config.Approvals()
	_, err := s.gate().CheckRollback(rule, "/x", nil, nil)
	wantRejected(t, err, "two operators must approve it")

	changes := map[string]string{"Machine.spec.trust.approvals": ""}
	_, err = s.gate().CheckChange(rule, apply, changes, nil)
	wantRejected(t, err, "two operators must approve the change of Machine.spec.trust.approvals")
	file := s.approve(t, apply, map[string]string{"Machine.spec.trust.approvals": "", "Machine.spec.trust.operatorCAs": ""})
	s.config = config.New("cp1", config.RoleControlPlane)
	if _, err := s.gate().CheckChange(rule, apply, changes, file); err != nil {
		t.Error(err)
	}
	if _, err := s.gate().CheckRollback(nil, "/x", nil, nil); err != nil {
		t.Errorf("without a rule: %v", err)
	}
	if _, err := s.gate().CheckChange(rule, apply, nil, nil); err != nil {
		t.Errorf("no change: %v", err)
	}
}

// TestUnreadable checks that no approval is accepted while its use cannot be stored.
func TestUnreadable(t *testing.T) {
	s := newSite(t)
	file := s.approve(t, reset, nil)
	if err := os.MkdirAll(s.file, 0o700); err != nil { // a directory in place of the file
		t.Fatal(err)
	}
	_, err := s.gate().Check(config.CallsWipe, reset, nil, file)
	wantRejected(t, err, "cannot read the used approvals")
	if err := os.Remove(s.file); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = s.gate().Check(config.CallsWipe, reset, nil, file)
	wantRejected(t, err, "cannot decode")
}
