package trust

import (
	"bytes"
	"fmt"
	"testing"
	"time"
)

// TestRemoveWithoutName checks that an empty name removes nothing. Revocations without a machine
// also have an empty machine name, and Remove must not match them.
func TestRemoveWithoutName(t *testing.T) {
	b := Ledger{Revoked: []Revocation{{Lineage: "1a", At: noon, Generation: 1}}}
	if _, tickets, err := b.Remove("", noon, "admin"); err == nil {
		t.Errorf("removed %v", tickets)
	}
}

// TestFullListForgets checks that a full list of revocations drops only the oldest revocation of a
// machine with expired certificates only. A merge with a peer does not add the dropped
// revocation again.
func TestFullListForgets(t *testing.T) {
	at := func(days int) time.Time { return noon.Add(-time.Duration(days) * 24 * time.Hour) }
	full := Ledger{Revoked: make([]Revocation, maxRevoked)}
	for i := range full.Revoked {
		// Entries without a machine never expire: a certificate of an operator's own CA can be
		// valid for any time.
		full.Revoked[i] = Revocation{Lineage: fmt.Sprintf("%x", i+1), At: at(1000), Generation: 1}
	}
	set := func(i, days int) { full.Revoked[i].Machine, full.Revoked[i].At = fmt.Sprint("w", i), at(days) }
	set(1, 119)
	set(2, 90)
	has := func(b Ledger, r Revocation) bool { return b.Revoked.find(r) >= 0 }
	fresh := Revocation{Lineage: "fffff", Machine: "w", At: noon, Generation: 1}
	if _, _, err := full.Revoke(fresh); err == nil {
		t.Error("Revoke drops a revocation of a certificate that may still be valid")
	}
	if _, _, err := full.MergeRevocations([]Revocation{fresh}, noon); err == nil {
		t.Error("MergeRevocations drops a revocation of a certificate that may still be valid")
	}
	set(7, 121)
	set(9, 130)
	set(8, 121)
	next, _, err := full.Revoke(fresh)
	if err != nil || len(next.Revoked) != maxRevoked || !has(next, fresh) || has(next, full.Revoked[9]) || !has(next, full.Revoked[7]) {
		t.Errorf("%v", err)
	}
	if merged, _, err := full.MergeRevocations([]Revocation{fresh}, noon); err != nil || !bytes.Equal(merged.Revoked.Digest(), next.Revoked.Digest()) {
		t.Errorf("%v", err)
	}
	back, news, err := next.MergeRevocations(full.Revoked, noon)
	if err != nil || len(news) != 0 || !bytes.Equal(back.Revoked.Digest(), next.Revoked.Digest()) {
		t.Errorf("%v, %v", news, err)
	}
	if back, news, err = (Ledger{}).MergeRevocations(full.Revoked[5:15], noon); err != nil || len(news) != 10 || !has(back, full.Revoked[9]) {
		t.Errorf("a ledger that is not full does not accept all revocations: %d, %v", len(news), err)
	}
	for _, want := range []int{7, 8} {
		was := next
		if next, _, err = next.Revoke(Revocation{Name: fmt.Sprint("dora", want), At: noon}); err != nil || has(next, full.Revoked[want]) || !has(was, full.Revoked[want]) {
			t.Errorf("Revoke does not drop the revocation %d: %v", want, err)
		}
	}
	if _, _, err := next.Revoke(Revocation{Name: "emil", At: noon}); err == nil {
		t.Error("the second Revoke drops a revocation of a certificate that may still be valid")
	}
}

// TestControlPlaneNames checks that a ledger contains the names of the current control-plane
// machines only.
func TestControlPlaneNames(t *testing.T) {
	b, planes := Ledger{}, []string{"10.0.0.11", "10.0.0.12", "10.0.0.13"}
	met := func(address, name, want string) {
		t.Helper()
		next, err := b.RecordControlPlaneName(address, name, planes)
		if got := fmt.Sprint(next.ControlPlanes); err != nil || got != want {
			t.Errorf("%s, %v", got, err)
		}
		b = next
	}
	met("10.0.0.12", "m2", "map[10.0.0.12:m2]")
	met("10.0.0.13", "m3", "map[10.0.0.12:m2 10.0.0.13:m3]")
	was := b
	planes = planes[:2]
	met("10.0.0.12", "m4", "map[10.0.0.12:m4]")
	if len(was.ControlPlanes) != 2 {
		t.Error("RecordControlPlaneName has changed the former ledger")
	}
	if next, err := b.RecordControlPlaneName("10.0.0.12", "a\nb", planes); err == nil || next.ControlPlanes["10.0.0.12"] != "m4" {
		t.Errorf("%v, %v", next.ControlPlanes, err)
	}
}
