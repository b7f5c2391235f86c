package claim

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/pki"
)

func rule() Rule {
	return Rule{
		Machines: []Identity{{Serial: "SN-1"}, {UUID: "4c4c4544-0001"}, {Serial: "SN-3", UUID: "4c4c4544-0003"}},
		Match:    "host.cpus >= 2 && host.memory > GiB", Maximum: 2, Expires: now.Add(24 * time.Hour),
	}
}

// TestVerifyRule checks that a rule is accepted only if it is unchanged and signed with an admin
// certificate of a trusted operator CA, and only between its signature and its expiry.
func TestVerifyRule(t *testing.T) {
	ca, admin := operator(t, pki.RoleAdmin)
	other, _ := operator(t, pki.RoleAdmin)
	signed, err := SignRule(rule(), admin, now)
	if err != nil {
		t.Fatal(err)
	}
	template, err := Sign(template(), admin, now)
	if err != nil {
		t.Fatal(err)
	}
	own := []*x509.Certificate{other.Cert, ca.Cert}
	changed := func(old, next string) SignedRule {
		return SignedRule{bytes.Replace(signed.Text, []byte(old), []byte(next), 1), signed.Signature}
	}
	for _, c := range []struct {
		name string
		s    SignedRule
		by   []*x509.Certificate
		now  time.Time
		want string // part of the error
	}{
		{"valid", signed, own, now, ""},
		{"shortly before its expiry", signed, own, now.Add(24*time.Hour - time.Second), ""},
		{"expired", signed, own, now.Add(24 * time.Hour), "rule: expired at 20"},
		{"signed in the future", signed, own, now.Add(-time.Second), "later than the time of this machine"},
		{"other operator", signed, []*x509.Certificate{other.Cert}, now, "is not of an operator of this machine"},
		{"no operator", signed, nil, now, "is not of an operator of this machine"},
		{"changed machine", changed("SN-1", "SN-9"), own, now, "sign it again (`orlopctl nodes rule`)"},
		{"changed maximum", changed(`"maximum": 2`, `"maximum": 3`), own, now, "sign it again"},
		{"added comment", SignedRule{append([]byte("# "), signed.Text...), signed.Signature}, own, now, "sign it again"},
		{"signature of a template", SignedRule{signed.Text, template.Signature}, own, now, "does not begin with a block"},
		{"no signature", SignedRule{signed.Text, nil}, own, now, "does not begin with a block"},
		{"no text", SignedRule{nil, signed.Signature}, own, now, "has 0 bytes"},
	} {
		got, by, err := c.s.Verify(c.by, c.now)
		switch {
		case c.want == "" && (err != nil || len(got.Machines) != 3 || got.Match != rule().Match || by.Subject.CommonName != "alice"):
			t.Errorf("%s: %+v, %v", c.name, got, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	if again, err := SignRule(rule(), admin, now.Add(time.Second)); err != nil || again.ID() == signed.ID() || len(signed.ID()) != 64 {
		t.Errorf("rules that were signed at different times have the same ID %[2]s, or its length is wrong: %[1]v", err, signed.ID())
	}
	// The signature of a rule is not valid for a template whose documents are the text of the rule,
	// even if its PEM block gets the type of a template.
	block, rest := pem.Decode(signed.Signature)
	forged := pem.EncodeToMemory(&pem.Block{Type: templateKind.block, Headers: map[string]string{prefixHeader: "a", expiresHeader: now.Add(time.Hour).Format(time.RFC3339)}, Bytes: block.Bytes})
	if _, _, err := (Signed{signed.Text, append(forged, rest...)}).Verify(own, now); err == nil {
		t.Error("the signature of a rule is accepted as the signature of a template")
	}
}

// TestSignRule checks the rules that SignRule rejects.
func TestSignRule(t *testing.T) {
	_, admin := operator(t, pki.RoleAdmin)
	_, lower := operator(t, pki.RoleOperator)
	machines := func(all ...Identity) func(*Rule) { return func(r *Rule) { r.Machines, r.Maximum = all, 1 } }
	for _, c := range []struct {
		name   string
		change func(*Rule)
		by     *pki.Leaf
		want   string
	}{
		{"lower role", func(*Rule) {}, lower, "has not the role orlop:admin"},
		{"expired", func(r *Rule) { r.Expires = now }, admin, "validity is out of range"},
		{"too long validity", func(r *Rule) { r.Expires = now.Add(367 * 24 * time.Hour) }, admin, "at most a year"},
		{"no machine", machines(), admin, "has 0 machines; 1 to 128"},
		{"many machines", func(r *Rule) { r.Machines = make([]Identity, 129) }, admin, "has 129 machines"},
		{"no maximum", func(r *Rule) { r.Maximum = 0 }, admin, "the maximum is 0; 1 to 3"},
		{"large maximum", func(r *Rule) { r.Maximum = 4 }, admin, "the maximum is 4; 1 to 3"},
		{"long expression", func(r *Rule) { r.Match = strings.Repeat("a", 4097) }, admin, "4097 characters"},
		{"machine without an identity", machines(Identity{}), admin, "neither a serial number nor a UUID"},
		{"serial number that is a placeholder", machines(Identity{Serial: "To Be Filled By O.E.M."}), admin, "is a placeholder"},
		{"serial number of zeros", machines(Identity{Serial: "0000"}), admin, "is a placeholder"},
		{"UUID of zeros", machines(Identity{UUID: "00000000-0000-0000-0000-000000000000"}), admin, "is a placeholder"},
		{"UUID of ones", machines(Identity{UUID: "ffffffff-ffff-ffff-ffff-ffffffffffff"}), admin, "is a placeholder"},
		{"capital UUID", machines(Identity{UUID: "4C4C"}), admin, "write it in lowercase"},
		{"blank after the serial number", machines(Identity{Serial: "SN-1 "}), admin, "without blanks around it"},
		{"newline in the serial number", machines(Identity{Serial: "SN\n1"}), admin, "printable ASCII"},
		{"long serial number", machines(Identity{Serial: strings.Repeat("1", 65)}), admin, "at most 64"},
		{"serial number twice", machines(Identity{Serial: "SN-1"}, Identity{Serial: "SN-1", UUID: "4c4c"}), admin, "serial number SN-1 is listed twice"},
		{"UUID twice", machines(Identity{UUID: "4c4c"}, Identity{Serial: "SN-1", UUID: "4c4c"}), admin, "UUID 4c4c is listed twice"},
		{"too many bytes", func(r *Rule) {
			r.Machines, r.Match = nil, strings.Repeat("a", 4096)
			for i := range 128 {
				r.Machines = append(r.Machines, Identity{Serial: fmt.Sprintf("%064d", i+1), UUID: fmt.Sprintf("%064x", i+1)})
			}
		}, admin, "rule: has 2"},
	} {
		in := rule()
		c.change(&in)
		if _, err := SignRule(in, c.by, now); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// TestFind checks which machine of the rule Find returns for the serial number and the UUID that a
// waiting machine states.
func TestFind(t *testing.T) {
	for _, c := range []struct {
		serial, uuid string
		want         string // empty if there is none
	}{
		{"SN-1", "", "serial number SN-1"},
		{"SN-1", "anything", "serial number SN-1"},
		{"SN-2", "4C4C4544-0001", "UUID 4c4c4544-0001"},
		{"SN-3", "4c4c4544-0003", "serial number SN-3, UUID 4c4c4544-0003"},
		{"SN-3", "4c4c4544-0004", ""},
		{"sn-1", "", ""},
		{"SN-1 ", "", ""},
		{"", "", ""},
	} {
		got, found := rule().Find(c.serial, c.uuid)
		if found != (c.want != "") || found && got.String() != c.want {
			t.Errorf("%q %q: %v %v, want %q", c.serial, c.uuid, got, found, c.want)
		}
	}
}

// FuzzParseRule parses arbitrary rules. A rule is untrusted, because the controllers read it from
// an object that any administrator of Kubernetes can write.
func FuzzParseRule(f *testing.F) {
	f.Add([]byte(`{"machines":[{"serial":"a"}],"maximum":1,"signed":"2026-01-01T00:00:00Z","expires":"2026-02-01T00:00:00Z"}`))
	f.Add([]byte("machines: &a [*a]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := (SignedRule{Text: text}).Parse()
		if err == nil && (len(r.Machines) > maxMachines || r.Maximum > len(r.Machines)) {
			t.Errorf("Parse accepts %+v", r)
		}
		if _, _, err := (SignedRule{Text: text}).Verify(nil, now); err == nil {
			t.Error("Verify accepts a rule without a trusted operator CA")
		}
	})
}
