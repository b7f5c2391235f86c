package pki

import (
	"crypto/x509"
	"testing"
)

// TestServerCAs checks for which of three CAs VerifyServer accepts a certificate of a server.
func TestServerCAs(t *testing.T) {
	own, site, stranger := newTestCA(t), newTestCA(t), newTestCA(t)
	text := func(ca *CA) string { return string(ca.CertPEM()) }
	for _, test := range []struct {
		name string
		cas  ServerCAs
		want []*CA
	}{
		{"public CAs only", ServerCAs{}, nil},
		{"a CA of this server only", ServerCAs{Own: text(own)}, []*CA{own}},
		{"public CAs and a CA of the site", ServerCAs{Site: text(site)}, []*CA{site}},
		{"a CA of this server and a CA of the site", ServerCAs{Own: text(own), Site: text(site)}, []*CA{own, site}},
		{"a text without a certificate", ServerCAs{Own: "none"}, nil},
	} {
		trusted := map[*CA]bool{}
		for _, ca := range test.want {
			trusted[ca] = true
		}
		for _, ca := range []*CA{own, site, stranger} {
			leaf, err := ca.Issue(Spec{CN: "s", DNS: []string{"time.example"}, Usage: Server, TTL: day, Now: noon})
			if err != nil {
				t.Fatal(err)
			}
			err = VerifyServer([]*x509.Certificate{leaf.Cert}, test.cas.Roots(), "time.example", noon)
			if (err == nil) != trusted[ca] {
				t.Errorf("%s: %v; trusted: %t", test.name, err, trusted[ca])
			}
		}
	}
	if got := (ServerCAs{}).Roots(); got != nil {
		t.Errorf("without a CA: %v; want nil, the public CAs", got)
	}
}
