package hosts

import (
	"crypto/ecdsa"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/admission/claim"
	"github.com/orlop-os/orlop/pkg/admission/inventory"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// empty is the content of the file for the controllers if the list of waiting machines is empty.
const empty = `{"waiting":[],"members":[],"names":[]}`

var start = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// registerTest is a register with a clock that the test sets.
type registerTest struct {
	*Register
	t         *testing.T
	now       time.Time
	disabled  bool
	members   []string
	offers    map[string]*claim.Signed
	approvals []trust.Approval
	file      string
	writeErr  error
	events    []string
}

func newRegisterTest(t *testing.T) *registerTest {
	r := &registerTest{t: t, now: start}
	r.Register = NewRegister(RegisterDeps{
		Enabled: func() bool { return !r.disabled },
		CheckSource: func(a netip.Addr) error {
			if a == netip.MustParseAddr("10.244.0.5") {
				return errors.New("it is the address of a pod")
			}
			return nil
		},
		Members:   func() []string { return r.members },
		Names:     func() []string { return nil },
		Approvals: func() []trust.Approval { return r.approvals },
		Operators: func() []byte { return nil },
		Offer:     func(key string) *claim.Signed { return r.offers[key] },
		Write: func(content []byte) error {
			if r.writeErr == nil {
				r.file = string(content)
			}
			return r.writeErr
		},
		Event: func(kind, message string) { r.events = append(r.events, kind+": "+message) },
		Now:   func() time.Time { return r.now },
	})
	return r
}

// TestOffer checks that the answer to a claimed machine contains its configuration, and that the
// answers to other machines contain none.
func TestOffer(t *testing.T) {
	r := newRegisterTest(t)
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	other, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	r.offers = map[string]*claim.Signed{pki.KeyFingerprint(&key.PublicKey): {Documents: []byte("d"), Signature: []byte("s")}}
	if a := r.Report(message(t, key, "10.0.0.21:1", "SN-1")); !a.Listed || string(a.Documents) != "d" || string(a.Signature) != "s" {
		t.Errorf("%+v", a)
	}
	if a := r.Report(message(t, other, "10.0.0.22:1", "SN-2")); !a.Listed || a.Documents != nil {
		t.Errorf("%+v", a)
	}
	if h, found := r.Host(pki.KeyFingerprint(&other.PublicKey)); !found || h.Serial != "SN-2" {
		t.Errorf("inventory %+v, %v", h, found)
	}
	if _, found := r.Host("sha256:00"); found {
		t.Error("an unknown machine has an inventory")
	}
	r.approvals = []trust.Approval{{Serial: "SN-1"}}
	if r.publish(); !strings.Contains(r.file, `"approvals":[{"serial":"SN-1"`) {
		t.Errorf("the file for the controllers does not have the approvals: %s", r.file)
	}
	r.members = []string{pki.KeyFingerprint(&key.PublicKey)}
	if a := r.Report(message(t, key, "10.0.0.21:1", "SN-1")); a.Listed || a.Documents != nil {
		t.Errorf("a member: %+v", a)
	}
}

// message returns a valid message of the machine key with the inventory of a machine with this
// serial number.
func message(t *testing.T, key *ecdsa.PrivateKey, peer, serial string) *api.ReportInventoryRequest {
	t.Helper()
	binding := make([]byte, 32)
	m, err := inventory.NewRequest(binding, key, inventory.Host{Serial: serial})
	if err != nil {
		t.Fatal(err)
	}
	return &api.ReportInventoryRequest{ChannelBinding: binding, Key: m.Key, Inventory: m.Inventory, Signature: m.Signature, Peer: peer}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// TestRegister follows the list of waiting machines and its file: a machine sends its inventory and
// is listed, joins and leaves the list, and the configuration disables inventories.
func TestRegister(t *testing.T) {
	r := newRegisterTest(t)
	r.publish()
	if r.file != empty {
		t.Errorf("the file of an empty list: %q", r.file)
	}
	key := newKey(t)
	fingerprint := pki.KeyFingerprint(&key.PublicKey)
	if a := r.Report(message(t, key, "10.0.0.21:4000", "SN-1")); !a.Listed || a.Reason != "" {
		t.Fatalf("%+v", a)
	}
	if len(r.events) != 1 || !strings.Contains(r.events[0], `10.0.0.21, with key `+fingerprint+`, claims the serial number "SN-1"`) {
		t.Errorf("%q", r.events)
	}
	r.publish()
	var file inventory.Listing
	err := json.Unmarshal([]byte(r.file), &file)
	if written := file.Waiting; err != nil || len(written) != 1 || written[0].Key != fingerprint || written[0].Address.String() != "10.0.0.21" || !written[0].Since.Equal(start) {
		t.Errorf("%s, %v", r.file, err)
	}
	published, revision := r.Published().Get()
	if len(published) != 1 || published[0].Host.Serial != "SN-1" {
		t.Errorf("%+v", published)
	}
	// The list has not changed, so it is not published again.
	r.publish()
	if _, again := r.Published().Get(); again != revision {
		t.Error("the same list was published again")
	}
	// A machine that has joined leaves the list.
	r.members = []string{fingerprint}
	r.publish()
	if r.file != `{"waiting":[],"members":["`+fingerprint+`"],"names":[]}` {
		t.Errorf("after the join: %s", r.file)
	}
	if a := r.Report(message(t, key, "10.0.0.21:4000", "SN-1")); a.Listed || !strings.Contains(a.Reason, "a member of the cluster has this key") {
		t.Errorf("%+v", a)
	}
	// The list becomes empty when the configuration disables inventories.
	r.members = nil
	r.Report(message(t, key, "10.0.0.21:4000", "SN-1"))
	r.disabled = true
	r.publish()
	if a := r.Report(message(t, key, "10.0.0.21:4000", "SN-1")); r.file != `{"waiting":[],"members":null,"names":null}` || a.Listed || !strings.Contains(a.Reason, "accepts no inventories") {
		t.Errorf("%s, %+v", r.file, a)
	}
}

// TestRegisterRejects checks which messages are rejected: messages from a pod, with a wrong
// signature, or too many from the same address. It also checks that events are limited.
func TestRegisterRejects(t *testing.T) {
	r := newRegisterTest(t)
	key := newKey(t)
	forged := message(t, key, "10.0.0.21:1", "SN-1")
	forged.ChannelBinding = append([]byte{1}, forged.ChannelBinding[1:]...)
	for want, m := range map[string]*api.ReportInventoryRequest{
		"the address of a pod":           message(t, key, "10.244.0.5:1", "SN-1"),
		"the signature is not":           forged,
		"cannot read the source address": message(t, key, "nonsense", "SN-1"),
	} {
		if a := r.Report(m); a.Listed || !strings.Contains(a.Reason, want) {
			t.Errorf("%+v, want %q", a, want)
		}
	}
	if len(r.list) != 0 || len(r.events) != 0 {
		t.Errorf("%v, %q", r.list, r.events)
	}
	// Messages from an address that has sent many are rejected; those from another address are not.
	last := &api.ReportInventoryResponse{}
	for range 30 {
		last = r.Report(message(t, key, "10.0.0.22:1", "SN-1"))
	}
	if last.Listed || !strings.Contains(last.Reason, "too many messages") {
		t.Errorf("%+v", last)
	}
	if a := r.Report(message(t, key, "10.0.0.23:1", "SN-1")); !a.Listed {
		t.Errorf("%+v", a)
	}
	// The number of events is limited, even for many machines.
	for i := range 40 {
		r.Report(message(t, newKey(t), fmt.Sprintf("10.0.1.%d:1", i), "SN-1"))
	}
	if len(r.events) > 10 {
		t.Errorf("%d events", len(r.events))
	}
}

// TestWriteFails checks that a failed write of the file is reported once and repeated later. On a
// machine without controllers, the directory does not exist, and no failure is reported.
func TestWriteFails(t *testing.T) {
	r := newRegisterTest(t)
	r.writeErr = fs.ErrNotExist
	r.publish()
	if len(r.events) > 0 {
		t.Errorf("%q", r.events)
	}
	r.writeErr = errors.New("no space left on device")
	r.publish()
	if len(r.events) != 1 || !strings.Contains(r.events[0], "no space left on device; the objects of waiting machines are out of date") {
		t.Errorf("%q", r.events)
	}
	// A repeated failure adds no second event, but a failure after a success does.
	r.publish()
	if len(r.events) != 1 {
		t.Errorf("%q", r.events)
	}
	r.writeErr = nil
	r.publish()
	if r.file != empty {
		t.Errorf("the file is %q", r.file)
	}
	r.members, r.writeErr = []string{"sha256:1"}, errors.New("no space left on device")
	r.publish()
	if len(r.events) != 2 {
		t.Errorf("%q", r.events)
	}
}
