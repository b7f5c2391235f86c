package claim

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/pki"
)

// now is a time at which all certificates of this test are valid.
var now = time.Now().UTC().Truncate(time.Second).Add(time.Minute)

// operator returns an operator CA and a certificate of this CA with a role.
func operator(t *testing.T, role string) (*pki.CA, *pki.Leaf) {
	t.Helper()
	ca, err := pki.NewCA("operator", 10*365*24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Issue(pki.Spec{CN: "alice", O: []string{role}, Usage: pki.Client, TTL: 2 * 365 * 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return ca, leaf
}

func template() Template {
	return Template{Documents: []byte("kind: Machine\n"), Prefix: "rack7", Expires: now.Add(30 * 24 * time.Hour)}
}

// TestVerify checks that a template is accepted only if it is unchanged, unexpired and signed with
// an admin certificate of a trusted operator CA.
func TestVerify(t *testing.T) {
	ca, admin := operator(t, pki.RoleAdmin)
	other, _ := operator(t, pki.RoleAdmin)
	signed, err := Sign(template(), admin, now)
	if err != nil {
		t.Fatal(err)
	}
	header := func(name, value string) Signed {
		block, rest := pem.Decode(signed.Signature)
		block.Headers[name] = value
		return Signed{signed.Documents, append(pem.EncodeToMemory(block), rest...)}
	}
	for _, c := range []struct {
		name string
		s    Signed
		by   []*x509.Certificate
		now  time.Time
		want string // part of the error
	}{
		{"valid", signed, []*x509.Certificate{other.Cert, ca.Cert}, now, ""},
		{"other operator", signed, []*x509.Certificate{other.Cert}, now, "is not of an operator of this machine"},
		{"no operator", signed, nil, now, "is not of an operator of this machine"},
		{"other documents", Signed{[]byte("kind: Cluster\n"), signed.Signature}, []*x509.Certificate{ca.Cert}, now, "sign it again"},
		{"other prefix", header(prefixHeader, "cp"), []*x509.Certificate{ca.Cert}, now, "sign it again"},
		{"prefix with a blank", header(prefixHeader, "a b"), []*x509.Certificate{ca.Cert}, now, "is no label of DNS"},
		{"later expiry", header(expiresHeader, "2099-11-29T12:00:00Z"), []*x509.Certificate{ca.Cert}, now, "sign it again"},
		{"added RuleOnly", header(approvalHeader, approvalRule), []*x509.Certificate{ca.Cert}, now, "sign it again"},
		{"invalid expiry", header(expiresHeader, "never"), []*x509.Certificate{ca.Cert}, now, "cannot read its expiry"},
		{"expired", signed, []*x509.Certificate{ca.Cert}, now.Add(30 * 24 * time.Hour), "expired at 20"},
		{"no documents", Signed{nil, signed.Signature}, []*x509.Certificate{ca.Cert}, now, "1 to 24576 are allowed"},
		{"no signature", Signed{signed.Documents, nil}, []*x509.Certificate{ca.Cert}, now, "does not begin with a block"},
		{"no certificate", Signed{signed.Documents, signed.Signature[:bytes.Index(signed.Signature, []byte("-----BEGIN CERT"))]}, []*x509.Certificate{ca.Cert}, now, "the certificate of its signature"},
		{"too large", Signed{signed.Documents, bytes.Repeat([]byte("x"), maxSignature+1)}, []*x509.Certificate{ca.Cert}, now, "8193 bytes"},
	} {
		got, by, err := c.s.Verify(c.by, c.now)
		switch {
		case c.want == "" && (err != nil || got.Prefix != "rack7" || !got.Expires.Equal(template().Expires) || by.Subject.CommonName != "alice"):
			t.Errorf("%s: %+v, %v", c.name, got, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	if name := template().NameOf("sha256:0123456789abcdef"); name != "rack7-01234567" {
		t.Error(name)
	}
}

// TestVerifyRole checks that Verify rejects a valid signature by a certificate with a lower role.
// The test has to forge this signature, because Sign does not make it.
func TestVerifyRole(t *testing.T) {
	ca, admin := operator(t, pki.RoleAdmin)
	lower, err := ca.Issue(pki.Spec{CN: "bob", O: []string{pki.RoleOperator}, Usage: pki.Client, TTL: 365 * 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	signed, err := Sign(template(), &pki.Leaf{Cert: admin.Cert, Key: lower.Key}, now)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(signed.Signature)
	signed.Signature = append(pem.EncodeToMemory(block), pki.EncodeCert(lower.Cert)...)
	if _, _, err := signed.Verify([]*x509.Certificate{ca.Cert}, now); err == nil || !strings.Contains(err.Error(), "has not the role orlop:admin") {
		t.Error(err)
	}
}

// TestSign checks the templates that Sign rejects.
func TestSign(t *testing.T) {
	_, admin := operator(t, pki.RoleAdmin)
	_, lower := operator(t, pki.RoleOperator)
	for _, c := range []struct {
		name   string
		change func(*Template)
		by     *pki.Leaf
		want   string
	}{
		{"lower role", func(*Template) {}, lower, "has not the role orlop:admin"},
		{"expired", func(t *Template) { t.Expires = now }, admin, "out of range"},
		{"too long validity", func(t *Template) { t.Expires = now.Add(367 * 24 * time.Hour) }, admin, "at most a year"},
		{"fraction of a second", func(t *Template) { t.Expires = now.Add(time.Hour + time.Millisecond) }, admin, "whole seconds"},
		{"capital in the prefix", func(t *Template) { t.Prefix = "Rack" }, admin, "is no label of DNS"},
		{"long prefix", func(t *Template) { t.Prefix = strings.Repeat("a", 41) }, admin, "at most 40 characters"},
		{"large documents", func(t *Template) { t.Documents = make([]byte, MaxDocuments+1) }, admin, "24577 bytes"},
	} {
		in := template()
		c.change(&in)
		if _, err := Sign(in, c.by, now); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// TestList checks that ParseList decodes an encoded list. After the time life, or if its time is
// too far in the future, the list is empty. ParseList rejects invalid lists.
func TestList(t *testing.T) {
	l := List{
		Written: now, Templates: map[string]Signed{"workers": {[]byte("d"), []byte("s")}},
		Rules:  map[string]SignedRule{"rack7": {[]byte("t"), []byte("s")}},
		Claims: []Claim{{Member{"rack7-01234567", "sha256:01"}, "workers", "rack7"}}, Removals: []Member{{"rack7-89abcdef", "sha256:89"}},
	}
	text, err := l.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		at    time.Time
		valid bool
	}{{now, true}, {now.Add(life), true}, {now.Add(life + 1), false}, {now.Add(-life - 1), false}} {
		got, err := ParseList(text, c.at)
		_, found := got.Of("sha256:01")
		if err != nil || found != c.valid || len(got.Removals) == 1 != c.valid {
			t.Errorf("%v: %+v, %v", c.at, got, err)
		}
	}
	for name, bad := range map[string]string{
		"no JSON": "{", "unknown field": `{"force": true}`, "too many removals": `{"removals": [` + strings.Repeat("{},", MaxClaims) + "{}]}", "too many bytes": strings.Repeat(" ", MaxList+1),
	} {
		if _, err := ParseList([]byte(bad), now); err == nil {
			t.Errorf("ParseList accepts a list with: %s", name)
		}
	}
}

// FuzzParseList parses arbitrary lists. machined does not trust a list, because the controllers,
// which have fewer rights than machined, write it.
func FuzzParseList(f *testing.F) {
	f.Add([]byte(`{"claims":[{"name":"a","key":"sha256:01","template":"t"}]}`))
	f.Add([]byte("{"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if l, err := ParseList(text, now); err == nil && len(l.Claims) > MaxClaims {
			t.Errorf("ParseList accepts a list with %d claims", len(l.Claims))
		}
	})
}

// FuzzVerify verifies arbitrary signatures, because an unauthenticated peer sends them.
func FuzzVerify(f *testing.F) {
	f.Add([]byte("-----BEGIN " + templateKind.block + "-----\nExpires: 2026-12-29T12:00:00Z\nPrefix: a\n\nAA==\n-----END " + templateKind.block + "-----\n"))
	f.Fuzz(func(t *testing.T, signature []byte) {
		if _, _, err := (Signed{[]byte("d"), signature}).Verify(nil, now); err == nil {
			t.Error("Verify accepted a signature without a trusted operator CA")
		}
	})
}
