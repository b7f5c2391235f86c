package approval

import (
	"bytes"
	"crypto/ecdsa"
	"encoding/pem"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/orlop-os/orlop/pkg/pki"
)

// now is the time of the tests.
var now = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

const (
	machineKey = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	otherKey   = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	reset      = "/orlop.v1alpha1.Machine/Reset"
)

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func testRequest(t *testing.T) Request {
	t.Helper()
	r, err := NewRequest(reset, []Machine{{"cp1", machineKey}}, map[string]string{"wipe": "WIPE_ALL", "force": "true"}, now.Add(-time.Hour), 8*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// signed returns the file of a request with the signatures of these keys.
func signed(t *testing.T, r Request, keys ...*ecdsa.PrivateKey) File {
	t.Helper()
	f, err := NewFile(r)
	for _, key := range keys {
		if err == nil {
			f, err = f.Sign(key)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestVerify has a case for every reason for which Verify rejects an approval. alice, bob and carol
// are approvers. mallory is an admin with a key that the rule does not list.
func TestVerify(t *testing.T) {
	alice, bob, carol, mallory := newKey(t), newKey(t), newKey(t), newKey(t)
	rule := Rule{Approvers: map[string]string{}}
	for name, key := range map[string]*ecdsa.PrivateKey{"alice": alice, "bob": bob, "carol": carol} {
		rule.Approvers[pki.KeyFingerprint(&key.PublicKey)] = name
	}
	call := Call{Method: reset, Machine: machineKey, Content: map[string]string{"wipe": "WIPE_ALL", "force": "true"}}
	r := testRequest(t)
	good := signed(t, r, alice, bob)
	change := func(old, next string) []byte { return bytes.Replace(good.Encode(), []byte(old), []byte(next), 1) }
	with := func(change func(*Call)) Call {
		c := call
		c.Content = maps.Clone(call.Content)
		change(&c)
		return c
	}
	// foreign states that the signature of alice is by the key of bob.
	foreign := File{Text: good.Text, Signatures: []Signature{good.Signatures[0], {&bob.PublicKey, good.Signatures[0].value}}}
	twice := File{Text: good.Text, Signatures: []Signature{good.Signatures[0], signed(t, r, alice).Signatures[0]}}
	later := r
	later.NotBefore, later.Expires = now.Add(time.Hour), now.Add(2*time.Hour)
	for _, c := range []struct {
		name string
		file []byte
		call Call
		now  time.Time
		want string // part of the error; empty if the approval is accepted
	}{
		{"valid", good.Encode(), call, now, ""},
		{"two other approvers", signed(t, r, carol, bob).Encode(), call, now, ""},
		{"three signatures", signed(t, r, alice, bob, carol).Encode(), call, now, ""},
		{"first second of the validity", good.Encode(), call, r.NotBefore, ""},
		{"last second of the validity", good.Encode(), call, r.Expires.Add(-time.Second), ""},
		{"no approval", nil, call, now, "the call has no approval"},
		{"no signature", signed(t, r).Encode(), call, now, "signatures of 0 approvers, and 2 must sign (alice, bob, carol)"},
		{"one signature", signed(t, r, alice).Encode(), call, now, "signatures of 1 approvers"},
		{"one approver twice", twice.Encode(), call, now, "signatures of 1 approvers"},
		{"a key of another admin", signed(t, r, alice, mallory).Encode(), call, now, "is not that of an approver"},
		{"a further key of another admin", signed(t, r, alice, bob, mallory).Encode(), call, now, "is not that of an approver"},
		{"the signature of another approver", foreign.Encode(), call, now, "the signature of bob is not that of this text"},
		{"a changed text", change("WIPE_ALL", "WIPE_DATA"), call, now, "is not that of this text"},
		{"a replaced machine", change(machineKey, otherKey), call, now, "is not that of this text"},
		{"a later expiry", change(stamp(r.Expires), stamp(r.Expires.Add(time.Hour))), call, now, "is not that of this text"},
		{"another nonce", change(r.Nonce, strings.Repeat("0", 32)), call, now, "is not that of this text"},
		{"an added blank", change("{\n", "{ \n"), call, now, "is not that of this text"},
		{"another method", good.Encode(), with(func(c *Call) { c.Method = "/orlop.v1alpha1.Machine/WipeDisk" }), now, "it approves the call " + reset},
		{"another machine", good.Encode(), with(func(c *Call) { c.Machine = otherKey }), now, "it is not for this machine"},
		{"a machine without a key", good.Encode(), with(func(c *Call) { c.Machine = "" }), now, "it is not for this machine"},
		{"another value", good.Encode(), with(func(c *Call) { c.Content["wipe"] = "WIPE_DATA" }), now, "the field wipe has another value"},
		{"a further field", good.Encode(), with(func(c *Call) { c.Content["drain.policy"] = "none" }), now, "the field drain.policy, which is not approved"},
		{"a missing field", good.Encode(), with(func(c *Call) { delete(c.Content, "force") }), now, "with the field force"},
		{"a partial call without a field", good.Encode(), with(func(c *Call) { delete(c.Content, "force"); c.Partial = true }), now, ""},
		{"a partial call with another value", good.Encode(), with(func(c *Call) { c.Content["wipe"] = ""; c.Partial = true }), now, "another value"},
		{"expired", good.Encode(), call, r.Expires, "it expired at"},
		{"not valid yet", signed(t, later, alice, bob).Encode(), call, now, "the clock of this machine shows 2026-11-29T12:00:00Z"},
		{"too large", bytes.Repeat([]byte("x"), MaxFile+1), call, now, "at most"},
		{"a broken signature", append(good.Encode(), "-----BEGIN X-----"...), call, now, "expected a block"},
		{"signatures without a text", good.Encode()[len(good.Text):], call, now, "is not that of this text"},
	} {
		got, err := rule.Verify(c.file, c.call, c.now)
		switch {
		case c.want == "" && (err != nil || len(got.By) < Signatures || got.Nonce != r.Nonce):
			t.Errorf("%s: %+v, %v", c.name, got, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	if got, err := rule.Verify(good.Encode(), call, now); err != nil || !slices.Equal(got.By, []string{"alice", "bob"}) {
		t.Errorf("%v, %v", got.By, err)
	}
	if _, err := good.Sign(alice); err == nil {
		t.Error("Sign adds a second signature of the same key")
	}
}

// TestRequests checks the errors of NewFile and parseRequest for invalid requests.
func TestRequests(t *testing.T) {
	for name, change := range map[string]func(*Request){
		"is no name of a method":  func(r *Request) { r.Call = "" },
		"has 0 machines":          func(r *Request) { r.Machines = nil },
		"has 129 machines":        func(r *Request) { r.Machines = make([]Machine, 129) },
		"is listed twice":         func(r *Request) { r.Machines = append(r.Machines, r.Machines[0]) },
		"of a machine is not":     func(r *Request) { r.Machines = []Machine{{"a", strings.ToUpper(machineKey)}} },
		"is no name of a machine": func(r *Request) { r.Machines = []Machine{{"a\n", machineKey}} },
		"at most 24h0m0s":         func(r *Request) { r.Expires = r.NotBefore.Add(24*time.Hour + time.Second) },
		"is valid from":           func(r *Request) { r.Expires = r.NotBefore },
		"the nonce":               func(r *Request) { r.Nonce = "00" },
		"the field":               func(r *Request) { r.Content = map[string]string{"a\x1b": "b"} },
	} {
		r := testRequest(t)
		change(&r)
		if _, err := NewFile(r); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, want %q", err, name)
		}
	}
	for text, want := range map[string]string{
		"":                       "has no request",
		"{}":                     "is no name of a method",
		`{"calls": "x"}`:         "unknown field",
		`{"call": 1, "call": 2}`: "occurs twice",
		"{} trailing":            "cannot parse",
	} {
		if _, err := parseRequest([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestContentOf checks that each field of a request is part of its content, and that ContentOf
// rejects a request with a field that this version does not know.
func TestContentOf(t *testing.T) {
	d := durationpb.New(90 * time.Second)
	got, err := ContentOf(&structpb.Value{Kind: &structpb.Value_ListValue{ListValue: &structpb.ListValue{Values: []*structpb.Value{structpb.NewStringValue("a"), {}}}}})
	want := map[string]string{"list_value": "set", "list_value.values[0]": "set", "list_value.values[0].string_value": "a", "list_value.values[1]": "set"}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := ContentOf(d); err != nil || !maps.Equal(got, map[string]string{"seconds": "90"}) {
		t.Errorf("%v, %v", got, err)
	}
	d.ProtoReflect().SetUnknown([]byte{0x98, 0x06, 0x01}) // field 99, a number
	if _, err := ContentOf(d); err == nil || !strings.Contains(err.Error(), "does not know") {
		t.Error(err)
	}
}

// TestUses checks that an approval can be used only once, even if the clock is set back after the
// expiry of the approval. It also checks the maximum length of the list of uses.
func TestUses(t *testing.T) {
	r := testRequest(t)
	a := Accepted{r, []string{"alice", "bob"}}
	u, err := Uses(nil).Add(a, now, now)
	if err != nil || len(u) != 1 {
		t.Fatal(u, err)
	}
	text, err := u.Encode()
	if err != nil {
		t.Fatal(err)
	}
	stored, err := ParseUses(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, floor := range []time.Time{now, r.Expires.Add(-time.Second), r.Expires, r.Expires.Add(time.Hour)} {
		if _, err := stored.Add(a, now, floor); err == nil || !strings.Contains(err.Error(), "already used") {
			t.Errorf("floor %s: %v", floor, err)
		}
	}
	full := Uses(nil)
	for i := range maxUses {
		r.Nonce = fmt.Sprintf("%032x", i)
		if full, err = full.Add(Accepted{r, nil}, now, now); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := full.Add(a, now, now); err == nil || !strings.Contains(err.Error(), "1024 used approvals") {
		t.Error(err)
	}
	if u, err := full.Add(a, now, r.Expires); err != nil || len(u) != 1 {
		t.Errorf("%d, %v", len(u), err)
	}
	if _, err := ParseUses([]byte("{")); err == nil {
		t.Error("ParseUses accepts a damaged list")
	}
}

// TestDescribe checks the text that an approver reads. It shows certificates by their names, and a
// question mark in place of each hidden character.
func TestDescribe(t *testing.T) {
	ca, err := pki.NewCAAt("operators", time.Hour, now)
	if err != nil {
		t.Fatal(err)
	}
	r := testRequest(t)
	r.Content = map[string]string{
		"Machine.spec.trust.operatorCAs": "- |\n    " + strings.ReplaceAll(strings.TrimSpace(string(ca.CertPEM())), "\n", "\n    ") + "\n",
		"Machine.spec.trust.approvals":   "",
		"disk":                           "/dev/sdb\u202e\x1b[2J",
	}
	got := strings.Join(r.Describe("erases the machine"), "\n")
	for _, want := range []string{
		"call: " + reset + "\n      erases the machine\n", "machine: cp1 " + machineKey + "\n", "Machine.spec.trust.approvals: removed or empty\n",
		"  - |\n      certificate CN=operators (" + pki.Fingerprint(ca.Cert) + ", until 2026-11-29T13:00:00Z)\n", "disk: /dev/sdb??[2J\n",
		"valid: from 2026-11-29T11:00:00Z to 2026-11-29T19:00:00Z (8h0m0s), once on each machine",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
}

// FuzzParseFile checks that no arbitrary file is accepted as signed, and that the request of a
// parsed file is within the limits. A single admin can send any file.
func FuzzParseFile(f *testing.F) {
	f.Add([]byte(`{"call":"/a","machines":[{"key":"` + machineKey + `"}],"content":{"a":"b"},"notBefore":"2026-11-29T11:00:00Z","expires":"2026-11-29T19:00:00Z","nonce":"00000000000000000000000000000000"}`))
	f.Add([]byte("{}\n" + string(pem.EncodeToMemory(&pem.Block{Type: signatureBlock, Bytes: []byte{1}}))))
	rule := Rule{Approvers: map[string]string{machineKey: "alice", otherKey: "bob"}}
	f.Fuzz(func(t *testing.T, content []byte) {
		if _, err := rule.Verify(content, Call{Machine: machineKey}, now); err == nil {
			t.Error("Verify accepts a file without a valid signature")
		}
		file, err := ParseFile(content)
		if err != nil {
			return
		}
		r, err := file.Request()
		if err != nil {
			return
		}
		if len(r.Machines) > maxMachines || r.Expires.Sub(r.NotBefore) > MaxValidity {
			t.Errorf("a request beyond the limits: %+v", r)
		}
		r.Describe("")
	})
}
