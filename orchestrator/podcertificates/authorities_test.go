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
// when it has been in the bundle for distributionTime. No certificate outlives the CA that has
// signed it. There are never more than two CAs.
func TestAuthorities(t *testing.T) {
	const step = time.Hour
	var all Authorities
	// by serial number: the time since which the CA is in the bundle
	believed := map[string]time.Time{}
	made, issuers := 0, map[string]bool{}
	for now := begin; now.Before(begin.Add(2 * 365 * 24 * time.Hour)); now = now.Add(step) {
		next, changed, err := all.Next("c", now)
		if err != nil {
			t.Fatal(err)
		}
		if changed == slices.Equal(next, all) {
			t.Fatalf("%v: changed %t, from %d to %d", now, changed, len(all), len(next))
		}
		if all = next; len(all) > 2 {
			t.Fatalf("%v: %d authorities", now, len(all))
		}
		for _, ca := range all {
			if _, known := believed[pki.Serial(ca.Cert)]; !known {
				believed[pki.Serial(ca.Cert)] = now
				made++
			}
		}
		issuer := all.Issuing(now)
		issuers[pki.Serial(issuer.Cert)] = true
		if since := believed[pki.Serial(issuer.Cert)]; made > 1 && now.Sub(since) < distributionTime {
			t.Fatalf("%v: issues by one that is believed since %v", now, since)
		}
		if end := issuer.Cert.NotAfter; end.Before(now.Add(maxTTL)) {
			t.Fatalf("%v: issues by one that ends at %v", now, end)
		}
	}
	if made != 13 || len(issuers) < made-1 { // a new CA every 60 days
		t.Errorf("%d were made, %d have issued", made, len(issuers))
	}
}

// TestAfterLongAbsence checks that a cluster creates a new CA and signs with it at once, after all
// its CAs have expired while it was off.
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
		t.Fatalf("%d authorities, %v", len(all), err)
	}
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	cert, err := issue(all[0], "c", &certificates.PodCertificateRequest{}, key.Public(), now)
	if err != nil || cert.NotAfter.After(all[0].Cert.NotAfter) {
		t.Errorf("%v, %v", cert.NotAfter, err)
	}
}

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
		"no PEM": []byte("x"), "half of one": all[0].CertPEM(), "another's key": append(all[0].CertPEM(), all[1].KeyPEM()...),
	} {
		if got, err := parse(text); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}
