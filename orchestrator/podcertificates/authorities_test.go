package podcertificates

import (
	"bytes"
	"slices"
	"testing"
	"time"

	certificates "k8s.io/api/certificates/v1"

	"github.com/orlop-os/orlop/pkg/pki"
)

var begin = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// TestAuthorities simulates two years in steps of an hour. From the second CA on, a CA signs only
// when it has been in the bundle for distributionTime. The CA that signs is valid for at least
// maxTTL, the longest validity of a certificate. There are never more than two CAs.
func TestAuthorities(t *testing.T) {
	const step = time.Hour
	var all Authorities
	// The time since which a CA is in the bundle, by serial number.
	published := map[string]time.Time{}
	made, issuers := 0, map[string]bool{}
	for now := begin; now.Before(begin.Add(2 * 365 * 24 * time.Hour)); now = now.Add(step) {
		next, changed, err := all.Next("c", now)
		if err != nil {
			t.Fatal(err)
		}
		if changed == slices.Equal(next, all) {
			t.Fatalf("%v: Next reports changed %t, from %d CAs to %d CAs", now, changed, len(all), len(next))
		}
		if all = next; len(all) > 2 {
			t.Fatalf("%v: there are %d CAs", now, len(all))
		}
		for _, ca := range all {
			if _, known := published[pki.Serial(ca.Cert)]; !known {
				published[pki.Serial(ca.Cert)] = now
				made++
			}
		}
		issuer := all.Issuing(now)
		issuers[pki.Serial(issuer.Cert)] = true
		if since := published[pki.Serial(issuer.Cert)]; made > 1 && now.Sub(since) < distributionTime {
			t.Fatalf("%v: the CA that signs has been in the bundle only since %v", now, since)
		}
		if end := issuer.Cert.NotAfter; end.Before(now.Add(maxTTL)) {
			t.Fatalf("%v: the CA that signs expires at %v", now, end)
		}
	}
	if made != 13 || len(issuers) < made-1 { // a new CA every 60 days
		t.Errorf("%d CAs were created, want 13, and %d of them signed", made, len(issuers))
	}
}

// TestAfterLongAbsence checks a cluster that was off until all its CAs had expired. It creates a
// new CA and signs with this CA at once.
func TestAfterLongAbsence(t *testing.T) {
	all, _, err := Authorities(nil).Next("c", begin)
	if err != nil {
		t.Fatal(err)
	}
	now := begin.Add(2 * caTTL)
	next, changed, err := all.Next("c", now)
	if err != nil || !changed || len(next) != 1 || next[0] == all[0] || next.Issuing(now) != next[0] {
		t.Errorf("%v, %t, %v", next, changed, err)
	}
}

// TestLateSuccessor checks a cluster that was off until its CA had only hours left. The successor
// signs at once, and a certificate of the old CA expires with the CA.
func TestLateSuccessor(t *testing.T) {
	all, _, err := Authorities(nil).Next("c", begin)
	if err != nil {
		t.Fatal(err)
	}
	now := all[0].Cert.NotAfter.Add(-3 * time.Hour)
	all, _, err = all.Next("c", now)
	if err != nil || len(all) != 2 || all.Issuing(now) != all[1] {
		t.Fatalf("there are %d CAs, %v, want 2, of which the new one signs", len(all), err)
	}
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	cert, err := issue(all[0], "c", &certificates.PodCertificateRequest{}, key.Public(), now)
	if err != nil || cert.NotAfter.After(all[0].Cert.NotAfter) {
		t.Errorf("a certificate of the old CA is valid until %v, %v, longer than the CA", cert.NotAfter, err)
	}
}

// TestEncoding checks that parse decodes encoded CAs and rejects other texts.
func TestEncoding(t *testing.T) {
	all, _, err := Authorities(nil).Next("c", begin)
	if err != nil {
		t.Fatal(err)
	}
	all, _, err = all.Next("c", begin.Add(successorAfter))
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	again, err := parse(all.encode())
	if err != nil || len(again) != 2 || !bytes.Equal(again.Bundle(), all.Bundle()) || !again[1].Key.Equal(all[1].Key) {
		t.Errorf("%v, %v", again, err)
	}
	for name, text := range map[string][]byte{
		"no PEM": []byte("x"), "a certificate without a key": all[0].CertPEM(), "the key of another CA": append(all[0].CertPEM(), all[1].KeyPEM()...),
	} {
		if got, err := parse(text); err == nil {
			t.Errorf("parse accepts %s: %v", name, got)
		}
	}
}
