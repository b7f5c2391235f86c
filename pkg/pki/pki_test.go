package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const day = 24 * time.Hour

func newTestCA(t *testing.T) *CA {
	t.Helper()
	ca, err := NewCAAt("test", 100*day, noon)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func TestIssuedCertificateVerifies(t *testing.T) {
	ca, other := newTestCA(t), newTestCA(t)
	leaf, err := ca.Issue(Spec{
		CN: "m1", O: []string{RoleAdmin}, DNS: []string{"m1.example"},
		IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}, Usage: Server, TTL: day, Now: noon,
	})
	if err != nil {
		t.Fatal(err)
	}
	server := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	client := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	cases := []struct {
		name  string
		ca    *CA
		host  string
		usage []x509.ExtKeyUsage
		at    time.Time
		ok    bool
	}{
		{"by name", ca, "m1.example", server, noon, true},
		{"by IPv4", ca, "192.0.2.1", server, noon, true},
		{"by IPv6", ca, "2001:db8::1", server, noon, true},
		{"clocks a little apart", ca, "m1.example", server, noon.Add(-time.Minute), true},
		{"before its validity", ca, "m1.example", server, noon.Add(-time.Hour), false},
		{"expired", ca, "m1.example", server, noon.Add(day + time.Second), false},
		{"another name", ca, "m2.example", server, noon, false},
		{"another CA", other, "m1.example", server, noon, false},
		{"another usage", ca, "m1.example", client, noon, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			roots := x509.NewCertPool()
			roots.AddCert(c.ca.Cert)
			_, err := leaf.Cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: c.host, KeyUsages: c.usage, CurrentTime: c.at})
			if (err == nil) != c.ok {
				t.Errorf("got %v, want success %v", err, c.ok)
			}
		})
	}
}

func TestLeafStaysInsideItsCA(t *testing.T) {
	ca := newTestCA(t)
	leaf, err := ca.Issue(Spec{CN: "x", Usage: Client, TTL: 1000 * day, Backdate: 10000 * day, Now: noon})
	if err != nil {
		t.Fatal(err)
	}
	if !leaf.Cert.NotAfter.Equal(ca.Cert.NotAfter) || !leaf.Cert.NotBefore.Equal(ca.Cert.NotBefore) {
		t.Errorf("the leaf is valid from %s to %s, its CA from %s to %s", leaf.Cert.NotBefore, leaf.Cert.NotAfter, ca.Cert.NotBefore, ca.Cert.NotAfter)
	}
	if _, err := ca.Issue(Spec{CN: "x", Usage: Client, TTL: day, Now: noon.Add(101 * day)}); err == nil || !strings.Contains(err.Error(), "create a new CA") {
		t.Errorf("Issue by an expired CA: got %v", err)
	}
}

func TestBadSpecs(t *testing.T) {
	ca := newTestCA(t)
	for name, spec := range map[string]Spec{
		"no name":  {Usage: Client, TTL: day},
		"no TTL":   {CN: "x", Usage: Client},
		"no usage": {CN: "x", TTL: day},
	} {
		if _, err := ca.Issue(spec); err == nil {
			t.Errorf("%s: Issue succeeds, want an error", name)
		}
	}
	if _, err := NewCA("", day); err == nil {
		t.Error("NewCA accepts an empty name")
	}
}

func TestNeedsRenewal(t *testing.T) {
	cert := &x509.Certificate{NotBefore: noon, NotAfter: noon.Add(30 * day)}
	cases := []struct {
		at   time.Duration
		want bool
	}{{-time.Second, true}, {0, false}, {20*day - time.Second, false}, {20 * day, true}, {31 * day, true}}
	for _, c := range cases {
		if got := NeedsRenewal(cert, noon.Add(c.at)); got != c.want {
			t.Errorf("after %s: got %v, want %v", c.at, got, c.want)
		}
	}
}

func TestFingerprintOutlivesTheCertificate(t *testing.T) {
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	self, err := SelfSigned(Spec{CN: "machine", Usage: Server, TTL: day, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	signed, err := newTestCA(t).Issue(Spec{CN: "m1", Usage: Server, TTL: day, Key: key, Now: noon})
	if err != nil {
		t.Fatal(err)
	}
	print := Fingerprint(self.Cert)
	if print != Fingerprint(signed.Cert) {
		t.Error("the same key has two fingerprints")
	}
	other, err := SelfSigned(Spec{CN: "machine", Usage: Server, TTL: day})
	if err != nil {
		t.Fatal(err)
	}
	if print == Fingerprint(other.Cert) {
		t.Error("two keys have the same fingerprint")
	}
	got, err := ParseFingerprint(" " + strings.ToUpper(print) + "\n")
	if err != nil || got != print {
		t.Errorf("ParseFingerprint: got %q, %v", got, err)
	}
	for _, bad := range []string{"", "sha256:", print[7:], print[:70], "sha1:" + print[7:], print + "00", "sha256:" + strings.Repeat("g", 64)} {
		if _, err := ParseFingerprint(bad); err == nil {
			t.Errorf("ParseFingerprint(%q) succeeded", bad)
		}
	}
}

func TestPEMRoundTrip(t *testing.T) {
	ca := newTestCA(t)
	back, err := ParseCA(ca.CertPEM(), ca.KeyPEM())
	if err != nil {
		t.Fatal(err)
	}
	if !back.Cert.Equal(ca.Cert) || !back.Key.Equal(ca.Key) {
		t.Error("ParseCA returns another CA than the encoded CA")
	}
	leaf, err := ca.Issue(Spec{CN: "x", Usage: Both, TTL: day, Now: noon})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParseLeaf(leaf.CertPEM(), leaf.KeyPEM()); err != nil {
		t.Error(err)
	}
	certs, err := ParseCerts(append(leaf.CertPEM(), ca.CertPEM()...))
	if err != nil || len(certs) != 2 {
		t.Errorf("ParseCerts: got %d, %v", len(certs), err)
	}
	for name, bad := range map[string]func() error{
		"leaf as CA":                           func() error { _, err := ParseCA(leaf.CertPEM(), leaf.KeyPEM()); return err },
		"leaf with the key of the CA":          func() error { _, err := ParseLeaf(leaf.CertPEM(), ca.KeyPEM()); return err },
		"key as cert":                          func() error { _, err := ParseCerts(leaf.KeyPEM()); return err },
		"cert as key":                          func() error { _, err := ParseKey(leaf.CertPEM()); return err },
		"no PEM":                               func() error { _, err := ParseCerts([]byte("garbage")); return err },
		"empty key":                            func() error { _, err := ParseKey(nil); return err },
		"two certificates in place of one":     func() error { _, err := ParseCert(append(leaf.CertPEM(), ca.CertPEM()...)); return err },
		"truncated":                            func() error { _, err := ParseCerts(leaf.CertPEM()[:100]); return err },
		"truncated, after a valid certificate": func() error { _, err := ParseCerts(append(ca.CertPEM(), leaf.CertPEM()[:100]...)); return err },
		"truncated, before a valid certificate": func() error {
			_, err := ParseCerts(append(append([]byte(nil), leaf.CertPEM()[:100]...), ca.CertPEM()...))
			return err
		},
	} {
		if bad() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestServiceAccountKey(t *testing.T) {
	private, public, err := NewServiceAccountKey()
	if err != nil {
		t.Fatal(err)
	}
	key, err := ParseKey(private)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(EncodePublicKey(key), public) {
		t.Error("the public key belongs to another private key")
	}
}

// TestRequest checks that ParseRequest takes only the public key from a CSR. A renewed certificate
// has the lineage and the holder of the first certificate.
func TestRequest(t *testing.T) {
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	request, err := NewRequest(key)
	if err != nil {
		t.Fatal(err)
	}
	public, err := ParseRequest(request)
	if err != nil || !public.Equal(&key.PublicKey) {
		t.Fatalf("%v, %v", public, err)
	}
	ca, err := NewCA("clients", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	first, err := ca.Issue(Spec{CN: "dora", Usage: Client, TTL: time.Minute, For: public})
	if err != nil || first.Key != nil || !Matches(first.Cert, key) {
		t.Fatalf("%v, %v", first, err)
	}
	if serial, root := LineageOf(first.Cert); serial != Serial(first.Cert) || root != "" {
		t.Errorf("the first certificate has the lineage %s and the root %q", serial, root)
	}
	renewed, err := ca.Issue(Spec{CN: "dora", Usage: Client, TTL: time.Minute, For: public, Lineage: Serial(first.Cert), Root: Fingerprint(ca.Cert)})
	if err != nil || Serial(renewed.Cert) == Serial(first.Cert) {
		t.Fatalf("%v, %v", renewed, err)
	}
	if serial, root := LineageOf(renewed.Cert); serial != Serial(first.Cert) || root != Fingerprint(ca.Cert) {
		t.Errorf("the renewed certificate has the lineage %s and the root %q", serial, root)
	}
	if first, renewed := HolderID(first.Cert), HolderID(renewed.Cert); first != renewed {
		t.Errorf("the holder of a certificate is %s, and the holder of its renewal %s", first, renewed)
	}
	// All certificates of a member have the same holder.
	var holders []string
	for range 2 {
		machine, err := ca.Issue(Spec{CN: "w1", Usage: Both, TTL: time.Minute, For: public, Ticket: "5f"})
		if err != nil {
			t.Fatal(err)
		}
		holders = append(holders, HolderID(machine.Cert))
	}
	if holders[0] != holders[1] || holders[0] != "5f" {
		t.Errorf("the holders of a machine's certificates are %q, want 5f", holders)
	}

	forged := bytes.Clone(request)
	forged[len(forged)-1] ^= 1
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewRequest(p384)
	if err != nil {
		t.Fatal(err)
	}
	for name, der := range map[string][]byte{"nothing": nil, "noise": []byte("noise"), "forged": forged, "another curve": other} {
		if _, err := ParseRequest(der); err == nil {
			t.Errorf("ParseRequest accepts a wrong request: %s", name)
		}
	}
}

func FuzzParseRequest(f *testing.F) {
	key, err := NewKey()
	if err != nil {
		f.Fatal(err)
	}
	request, err := NewRequest(key)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(request)
	f.Fuzz(func(t *testing.T, der []byte) {
		if public, err := ParseRequest(der); err == nil && public.Curve != elliptic.P256() {
			t.Error("ParseRequest accepts a key of a curve other than P-256")
		}
	})
}

// TestDistinct checks that Distinct removes repeated values and retains the order of the first
// occurrences.
func TestDistinct(t *testing.T) {
	for _, c := range [][2][]string{
		{nil, nil},
		{{"a"}, {"a"}},
		{{"b", "a", "b", "c", "a"}, {"b", "a", "c"}},
	} {
		if got := Distinct(c[0]); !slices.Equal(got, c[1]) {
			t.Errorf("Distinct(%q) = %q, want %q", c[0], got, c[1])
		}
	}
}
