package trust

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestRemovedMachines: the revocation of a ticket retains the name of its machine, in every order
// of merges, and the machine can be removed again.
func TestRemovedMachines(t *testing.T) {
	member := Member{Name: "w1", Ticket: "1a", Key: "sha256:" + strings.Repeat("0", 64), Address: "10.0.0.21", Joined: noon, Renewed: noon, Expires: noon.Add(time.Hour)}
	open := Ticket{Serial: "2b", Name: "w2", At: noon, Expires: noon.Add(time.Hour), Voters: []string{strings.Repeat("0", 32)}, Quorum: 1}
	all := Ledger{Membership: Membership{Members: []Member{member}, Tickets: []Ticket{open}}}
	of := func(b Ledger, now time.Time) (names []string) {
		for _, g := range b.RemovedSince(noon.Add(-time.Hour), now) {
			names = append(names, g.Name+" "+g.Ticket)
		}
		return names
	}
	b, tickets, err := all.Remove("w1", noon, "admin")
	if err != nil || !slices.Equal(tickets, []string{"1a"}) || !slices.Equal(of(b, noon), []string{"w1 1a"}) {
		t.Fatalf("%v, %v, %v", tickets, of(b, noon), err)
	}
	again, tickets, err := b.Remove("w1", noon.Add(time.Hour), "admin")
	if err != nil || !slices.Equal(tickets, []string{"1a"}) || !bytes.Equal(again.Revoked.Digest(), b.Revoked.Digest()) {
		t.Errorf("removed again: %v, %v", tickets, err)
	}
	for _, name := range []string{"w3", ""} {
		if _, _, err := b.Remove(name, noon, "admin"); err == nil {
			t.Errorf("%q was removed", name)
		}
	}
	if b, _, err = b.Revoke(Revocation{Lineage: "2b", At: noon, By: "admin"}); err != nil || !slices.Equal(of(b, noon), []string{"w1 1a", "w2 2b"}) {
		t.Errorf("%v, %v", of(b, noon), err)
	}
	if got := b.RemovedSince(noon, noon); len(got) != 0 {
		t.Errorf("removed after noon: %v", got)
	}

	// A machine that never knew the member gets its name by a merge, even if it got the revocation
	// without the name before.
	nameless := Revocation{Lineage: "1a", At: noon, By: "admin", Generation: 1}
	stranger, _, err := Ledger{}.MergeRevocations([]Revocation{nameless}, noon)
	if err != nil || len(of(stranger, noon)) != 0 {
		t.Fatal(of(stranger, noon), err)
	}
	for range 2 {
		if stranger, _, err = stranger.MergeRevocations(b.Revoked, noon); err != nil || !bytes.Equal(stranger.Revoked.Digest(), b.Revoked.Digest()) {
			t.Errorf("%v, %v", stranger.Revoked, err)
		}
		if stranger, _, err = stranger.MergeRevocations([]Revocation{nameless}, noon); err != nil || !bytes.Equal(stranger.Revoked.Digest(), b.Revoked.Digest()) {
			t.Errorf("it has forgotten the name: %v, %v", stranger.Revoked, err)
		}
	}
	knew, _, err := all.MergeRevocations([]Revocation{nameless}, noon)
	if err != nil || !slices.Equal(of(knew, noon), []string{"w1 1a"}) {
		t.Errorf("%v, %v", of(knew, noon), err)
	}
	for _, bad := range []Revocation{{Name: "dora", Machine: "w1"}, {Lineage: "1a", Machine: "a\nb"}} {
		if _, _, err := (Ledger{}).MergeRevocations([]Revocation{bad}, noon); err == nil {
			t.Errorf("accepted %+v", bad)
		}
	}

	// The name is in use again: first by an open ticket, then by a member.
	open.Serial, open.Name = "3c", "w1"
	if b, err = b.AddTicket(open); err != nil || !slices.Equal(of(b, noon), []string{"w2 2b"}) || len(of(b, noon.Add(time.Hour))) != 2 {
		t.Errorf("%v, %v", of(b, noon), err)
	}
	member.Ticket = "3c"
	if b.Members = []Member{member}; !slices.Equal(of(b.normalize(), noon.Add(time.Hour)), []string{"w2 2b"}) {
		t.Errorf("%v", of(b, noon))
	}
}

// TestFullListForgets: a full list drops only the oldest ticket without valid certificates. A peer
// that still has this entry does not bring it back.
func TestFullListForgets(t *testing.T) {
	at := func(days int) time.Time { return noon.Add(-time.Duration(days) * 24 * time.Hour) }
	full := Ledger{Revoked: make([]Revocation, maxRevoked)}
	for i := range full.Revoked {
		// The validity period of an operator's own certificates is unknown.
		full.Revoked[i] = Revocation{Lineage: fmt.Sprintf("%x", i+1), At: at(1000), Generation: 1}
	}
	set := func(i, days int) { full.Revoked[i].Machine, full.Revoked[i].At = fmt.Sprint("w", i), at(days) }
	set(1, 119)
	set(2, 90)
	has := func(b Ledger, r Revocation) bool { return b.Revoked.find(r) >= 0 }
	fresh := Revocation{Lineage: "fffff", Machine: "w", At: noon, Generation: 1}
	if _, _, err := full.Revoke(fresh); err == nil {
		t.Error("forgets what may be valid")
	}
	if _, _, err := full.MergeRevocations([]Revocation{fresh}, noon); err == nil {
		t.Error("forgets what may be valid")
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
		t.Errorf("one with room for it: %d, %v", len(news), err)
	}
	for _, want := range []int{7, 8} {
		was := next
		if next, _, err = next.Revoke(Revocation{Name: fmt.Sprint("dora", want), At: noon}); err != nil || has(next, full.Revoked[want]) || !has(was, full.Revoked[want]) {
			t.Errorf("%d: %v", want, err)
		}
	}
	if _, _, err := next.Revoke(Revocation{Name: "emil", At: noon}); err == nil {
		t.Error("forgets what may be valid")
	}
}

// TestControlPlaneNames: a ledger contains only the names of current control-plane machines.
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
		t.Error("another ledger has changed with it")
	}
	if next, err := b.RecordControlPlaneName("10.0.0.12", "a\nb", planes); err == nil || next.ControlPlanes["10.0.0.12"] != "m4" {
		t.Errorf("%v, %v", next.ControlPlanes, err)
	}
}
