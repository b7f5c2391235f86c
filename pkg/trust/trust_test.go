package trust

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/pki"
)

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// TestRevokedRow checks that the revocation of a certificate revokes its whole lineage. The
// revocation of a name revokes all certificates with this name.
func TestRevokedRow(t *testing.T) {
	ca, err := pki.NewCA("clients", 100*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	issue := func(name, origin string) *pki.Leaf {
		leaf, err := ca.Issue(pki.Spec{CN: name, Usage: pki.Client, TTL: time.Hour, Lineage: origin, Root: pki.Fingerprint(ca.Cert)})
		if err != nil {
			t.Fatal(err)
		}
		return leaf
	}
	first := issue("dora", "")
	origin := func(l *pki.Leaf) string { serial, _ := pki.LineageOf(l.Cert); return serial }
	second := issue("dora", origin(first))
	third := issue("dora", origin(second))
	other, namesake := issue("emil", ""), issue("dora", "")
	var b Ledger
	for _, l := range []*pki.Leaf{first, second, third, other, namesake} {
		b = b.AddIssued(Issued{Serial: pki.Serial(l.Cert), Lineage: origin(l), Name: l.Cert.Subject.CommonName, At: noon, Expires: noon.Add(time.Hour)})
	}
	refused := func(b Ledger) string {
		var out []string
		for name, l := range map[string]*pki.Leaf{"1": first, "2": second, "3": third, "namesake": namesake, "other": other} {
			if CheckRevoked(b.Revoked, l.Cert) != nil {
				out = append(out, name)
			}
		}
		return strings.Join(slices.Sorted(slices.Values(out)), " ")
	}
	if got := refused(b); got != "" {
		t.Errorf("an empty ledger revokes a certificate: %s", got)
	}
	for _, l := range []*pki.Leaf{first, second, third} {
		cut, done, err := b.Revoke(Revocation{Lineage: pki.Serial(l.Cert), At: noon})
		if err != nil || done.Lineage != pki.Serial(first.Cert) {
			t.Errorf("%v, %v", done, err)
		}
		if got := refused(cut); got != "1 2 3" {
			t.Errorf("the revocation of a certificate must revoke its lineage, got %s", got)
		}
	}
	// A machine that has not issued the lineage recognizes its certificates by their serial
	// numbers, because they contain the prefix of the lineage.
	elsewhere, _, err := Ledger{}.Revoke(Revocation{Lineage: pki.Serial(second.Cert), At: noon})
	if err != nil {
		t.Fatal(err)
	}
	if got := refused(elsewhere); got != "1 2 3" {
		t.Errorf("a revocation on a machine that has not issued the lineage revokes %s", got)
	}
	named, _, err := b.Revoke(Revocation{Name: "dora", At: noon})
	if err != nil {
		t.Fatal(err)
	}
	if got := refused(named); got != "1 2 3 namesake" {
		t.Errorf("the revocation of the name dora revokes %s", got)
	}
	if again, done, err := named.Revoke(Revocation{Name: "dora", At: noon.Add(time.Hour)}); err != nil || len(again.Revoked) != 1 || !done.At.Equal(noon) {
		t.Errorf("revoked twice: %v, %v, %v", again.Revoked, done, err)
	}
	// Two machines that have not synced change the same name: the first restores it, and the second
	// revokes it again.
	here, err := named.Restore(Revocation{Name: "dora", At: noon})
	if err != nil {
		t.Fatal(err)
	}
	there, _, err := named.Revoke(Revocation{Name: "dora", At: noon})
	if err != nil {
		t.Fatal(err)
	}
	for _, both := range [][2]Ledger{{here, there}, {there, here}} {
		merged, _, err := both[0].MergeRevocations(both[1].Revoked, noon)
		if got := refused(Ledger{Revoked: merged.Revoked.Active()}); err != nil || got != "1 2 3 namesake" {
			t.Errorf("after the sync of both machines: %s, %v", got, err)
		}
	}
	restored, err := named.Restore(Revocation{Name: "dora", At: noon})
	if got := refused(Ledger{Revoked: restored.Revoked.Active()}); err != nil || got != "" {
		t.Errorf("after Restore, these certificates are still revoked: %s, %v", got, err)
	}
	if _, err := restored.Restore(Revocation{Name: "dora"}); err == nil {
		t.Error("Restore accepts a name that is not revoked")
	}
	if got, want := CheckRevoked(named.Revoked, first.Cert).Error(), "your certificate was revoked at 2026-05-01T12:00:00Z (name dora)"; got != want {
		t.Errorf("got %s", got)
	}
}

// TestLongLineage checks that the revocation of any certificate revokes its whole lineage and no
// other lineage, after any number of renewals. It covers certificates that the ledger has dropped,
// and a machine that has issued no certificate of the lineage.
func TestLongLineage(t *testing.T) {
	ca, err := pki.NewCA("clients", 100*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	const renewals = 3 * maxPerLineage
	issue := func(origin string) *pki.Leaf {
		leaf, err := ca.Issue(pki.Spec{CN: "dora", Usage: pki.Client, TTL: time.Hour, Lineage: origin, Root: pki.Fingerprint(ca.Cert)})
		if err != nil {
			t.Fatal(err)
		}
		return leaf
	}
	var b Ledger
	rows := make([][]*pki.Leaf, 2)
	for n := range 1 + renewals { // both lineages in turn, with the same name
		for i := range rows {
			origin := ""
			if n > 0 {
				origin, _ = pki.LineageOf(rows[i][n-1].Cert)
			}
			leaf := issue(origin)
			// The first certificate of the second lineage is from an operator's own CA, so it is
			// not in the ledger.
			if origin, _ = pki.LineageOf(leaf.Cert); n > 0 || i == 0 {
				b = b.AddIssued(Issued{Serial: pki.Serial(leaf.Cert), Lineage: origin, Name: "dora", At: noon, Expires: noon.Add(time.Hour)})
			}
			rows[i] = append(rows[i], leaf)
		}
	}
	if len(b.Issued) != 2*maxPerLineage {
		t.Errorf("the ledger has %d certificates", len(b.Issued))
	}
	serials := map[string]bool{}
	for i, row := range rows {
		first, _ := pki.LineageOf(row[0].Cert)
		for n, leaf := range row {
			serial := pki.Serial(leaf.Cert)
			if parsed, err := ParseSerial(serial); err != nil || parsed != serial || serials[serial] {
				t.Fatalf("serial %s: %s, %v", serial, parsed, err)
			}
			serials[serial] = true
			if !SameLineage(serial, first) || SameLineage(serial, pki.Serial(rows[1-i][0].Cert)) {
				t.Errorf("lineage %d, certificate %d: SameLineage returns a wrong result", i, n)
			}
			here, done, err := b.Revoke(Revocation{Lineage: serial, At: noon})
			if err != nil || done.Lineage != first || !b.HasIssued(serial) {
				t.Errorf("lineage %d, certificate %d: %v, %v", i, n, done, err)
			}
			elsewhere, _, err := Ledger{}.Revoke(Revocation{Lineage: serial, At: noon})
			if err != nil {
				t.Error(err)
			}
			for where, list := range map[string][]Revocation{"here": here.Revoked, "elsewhere": elsewhere.Revoked} {
				for k, other := range rows {
					for m, l := range other {
						if refused := CheckRevoked(list, l.Cert) != nil; refused != (k == i) {
							t.Fatalf("after the revocation of certificate %[2]d of lineage %[1]d %[3]s: certificate %[5]d of lineage %[4]d is revoked: %[6]t", i, n, where, k, m, refused)
						}
					}
				}
			}
		}
	}
}

func TestBookIsBounded(t *testing.T) {
	var b Ledger
	for n := range maxIssued + 10 {
		b = b.AddIssued(Issued{Serial: fmt.Sprint(n), Lineage: fmt.Sprint(n), At: noon, Expires: noon.Add(time.Hour)})
	}
	if len(b.Issued) != maxIssued || b.Issued[0].Serial != "10" {
		t.Errorf("the ledger has %d certificates, the oldest is %s", len(b.Issued), b.Issued[0].Serial)
	}
	for n := range 100 { // a client with endless renewals
		b = b.AddIssued(Issued{Serial: fmt.Sprint("r", n), Lineage: "r0", At: noon, Expires: noon.Add(time.Hour)})
	}
	if len(b.Issued) != maxIssued || b.Issued[0].Serial != fmt.Sprint(10+maxPerLineage) || b.Issued[maxIssued-1].Serial != "r99" {
		t.Errorf("the ledger has %d certificates, from %s to %s", len(b.Issued), b.Issued[0].Serial, b.Issued[maxIssued-1].Serial)
	}
	later := noon.Add(time.Hour + keepExpired + time.Second)
	if b = b.AddIssued(Issued{Serial: "new", At: later, Expires: later.Add(time.Hour)}); len(b.Issued) != 1 {
		t.Errorf("the ledger has %d certificates after their expiry", len(b.Issued))
	}
	b.Revoked = make([]Revocation, maxRevoked)
	if _, _, err := b.Revoke(Revocation{Name: "dora"}); err == nil {
		t.Error("the ledger accepts too many revocations")
	}
}

func TestLife(t *testing.T) {
	for _, c := range []struct {
		asked, most, want time.Duration
	}{
		{0, MaxTTL, DefaultTTL}, {0, time.Hour, time.Hour}, {time.Hour, time.Hour, time.Hour}, {2 * time.Hour, time.Hour, 0},
		{time.Second, MaxTTL, 0}, {-time.Hour, MaxTTL, 0}, {MaxTTL + 1, MaxTTL, 0},
	} {
		if got, err := TTL(c.asked, c.most); got != c.want || (err == nil) != (c.want > 0) {
			t.Errorf("TTL(%s, %s) = %s, %v", c.asked, c.most, got, err)
		}
	}
	b := Ledger{}.AddIssued(Issued{Serial: "1", At: noon, Expires: noon.Add(time.Hour), TTL: time.Hour})
	if b.Issued.MaxRenewal("1") != time.Hour || b.Issued.MaxRenewal("2") != DefaultTTL {
		t.Error(b.Issued.MaxRenewal("1"), b.Issued.MaxRenewal("2"))
	}
}

func TestNamesAndSerials(t *testing.T) {
	for _, good := range []string{"dora", "d", "dora.b@example.org", "A-1_2"} {
		if err := CheckName(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", ".dora", "dora b", "dora\n", "Zoë", "a/b", strings.Repeat("a", 65)} {
		if CheckName(bad) == nil {
			t.Errorf("CheckName accepts %q", bad)
		}
	}
	for _, bad := range []string{"", "0", "0x1f", "12 34", strings.Repeat("a", 41)} {
		if _, err := ParseSerial(bad); err == nil {
			t.Errorf("ParseSerial accepts %q", bad)
		}
	}
	for _, good := range []string{"5f0c2d", "5F0C2D", "005f0c2d", "5f:0c:2d"} {
		if got, err := ParseSerial(good); err != nil || got != "5f0c2d" {
			t.Errorf("ParseSerial(%q) = %q, %v", good, got, err)
		}
	}
	for name, want := range map[string]bool{"Zoë B": true, "": false, "a\nb": false, "\xff": false, strings.Repeat("a", 129): false} {
		if err := CheckHolder(name); (err == nil) != want {
			t.Errorf("CheckHolder(%q) = %v", name, err)
		}
	}
}

// TestMachinesAgree checks that machines that sync in any order reach the same state. If all
// machines sync before and after a name is restored, the name is valid on all of them.
func TestMachinesAgree(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		machines := make([]Ledger, 3)
		at := noon
		learn := func(i, j int) {
			next, _, err := machines[i].MergeRevocations(machines[j].Revoked, noon)
			if err != nil {
				t.Fatal(err)
			}
			machines[i] = next
		}
		all := func() {
			for range machines {
				for i := range machines {
					learn(i, (i+1)%len(machines))
				}
			}
		}
		for range 30 {
			i, name := random.IntN(len(machines)), string(rune('a'+random.IntN(3)))
			at = at.Add(time.Duration(random.IntN(3)-1) * time.Minute) // clocks differ
			r := Revocation{Name: name, At: at, By: string(rune('x' + i))}
			switch random.IntN(4) {
			case 0:
				machines[i], _, _ = machines[i].Revoke(r)
			case 1:
				if next, err := machines[i].Restore(r); err == nil {
					machines[i] = next
				}
			case 2:
				learn(i, random.IntN(len(machines)))
			case 3:
				all()
				machines[i], _, _ = machines[i].Revoke(r)
				all()
				next, err := machines[(i+1)%3].Restore(r)
				if err != nil {
					t.Fatal(err)
				}
				machines[(i+1)%3] = next
				all()
				for _, b := range machines {
					if slices.ContainsFunc(b.Revoked.Active(), func(r Revocation) bool { return r.Name == name }) {
						t.Fatalf("the name %s was restored last, but is revoked: %v", name, b.Revoked)
					}
				}
			}
		}
		all()
		for _, b := range machines[1:] {
			if !bytes.Equal(b.Revoked.Digest(), machines[0].Revoked.Digest()) {
				t.Fatalf("the machines have different revocations:\n%v\n%v", b.Revoked, machines[0].Revoked)
			}
		}
	}
}

func TestMergeRefuses(t *testing.T) {
	for name, r := range map[string]Revocation{
		"no name and no lineage": {}, "a name and a lineage": {Name: "dora", Lineage: "1a"}, "a restored certificate": {Lineage: "1a", Restored: true}, "an invalid serial number": {Lineage: "0x1A"},
		"a name with a control character": {Name: "do\nra"}, "a long subject": {Name: "dora", By: strings.Repeat("x", 129)},
		"a subject that is not UTF-8": {Name: "dora", By: "\xff"}, "a subject of two lines": {Name: "dora", By: "a\nb"}, "a machine that is not UTF-8": {Lineage: "1a", Machine: "\xff"}, "a machine of two lines": {Lineage: "1a", Machine: "a\nb"},
		"a name with a machine": {Name: "dora", Machine: "m1"}, "a time after the year 9999": {Name: "dora", At: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)},
		"a time before the year 0": {Lineage: "1a", At: time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC)},
	} {
		if next, news, err := (Ledger{}).MergeRevocations([]Revocation{r}, noon); err == nil || len(next.Revoked)+len(news) > 0 {
			t.Errorf("%s: accepted %v", name, news)
		}
	}
	// The valid entries are merged and can be stored.
	sent := []Revocation{{Name: "ann", At: noon, Generation: 1}, {Name: "emil", At: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}, {Lineage: "1a", At: noon, Generation: 1}}
	next, news, err := (Ledger{}).MergeRevocations(sent, noon)
	if err == nil || !strings.Contains(err.Error(), "cannot use 1 of the received entries: name \"emil\": the year 10000") || len(news) != 2 {
		t.Errorf("%v, %v", news, err)
	}
	if _, err := json.Marshal(next); err != nil {
		t.Error(err)
	}
	if _, _, err := (Ledger{}).Revoke(sent[1]); err == nil {
		t.Error("Revoke records a revocation that peers cannot merge")
	}
	full := Ledger{Revoked: make([]Revocation, maxRevoked)}
	if _, _, err := full.MergeRevocations([]Revocation{{Name: "dora", Generation: 1}}, noon); err == nil {
		t.Error("a merge exceeds the maximum number of revocations")
	}
	full.Revoked[7] = Revocation{Name: "emil", Generation: 2, Restored: true}
	if next, news, err := full.MergeRevocations([]Revocation{{Name: "ann", Generation: 2, Restored: true}, {Name: "dora", Generation: 1}}, noon); err != nil || len(news) != 1 || len(next.Revoked) != maxRevoked {
		t.Errorf("%v, %v", news, err)
	}
}
