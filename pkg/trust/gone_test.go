package trust

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestGone: a revocation keeps the name of the machine whose ticket it is, wherever it is learnt and in whatever order, and the machine can be
// removed again.
func TestGone(t *testing.T) {
	member := Member{Name: "w1", Ticket: "1a", Key: "sha256:" + strings.Repeat("0", 64), Address: "10.0.0.21", Joined: noon, Renewed: noon, Expires: noon.Add(time.Hour)}
	open := Ticket{Serial: "2b", Name: "w2", At: noon, Expires: noon.Add(time.Hour), Voters: []string{strings.Repeat("0", 32)}, Needs: 1}
	all := Book{Roll: Roll{Members: []Member{member}, Tickets: []Ticket{open}}}
	of := func(b Book, now time.Time) (names []string) {
		for _, g := range b.Gone(noon.Add(-time.Hour), now) {
			names = append(names, g.Name+" "+g.Ticket)
		}
		return names
	}
	b, tickets, err := all.Remove("w1", noon, "admin")
	if err != nil || !slices.Equal(tickets, []string{"1a"}) || !slices.Equal(of(b, noon), []string{"w1 1a"}) {
		t.Fatalf("%v, %v, %v", tickets, of(b, noon), err)
	}
	again, tickets, err := b.Remove("w1", noon.Add(time.Hour), "admin")
	if err != nil || !slices.Equal(tickets, []string{"1a"}) || !bytes.Equal(again.Digest(), b.Digest()) {
		t.Errorf("removed again: %v, %v", tickets, err)
	}
	for _, name := range []string{"w3", ""} {
		if _, _, err := b.Remove(name, noon, "admin"); err == nil {
			t.Errorf("%q was removed", name)
		}
	}
	if b, _, err = b.Revoke(Revocation{Origin: "2b", At: noon, By: "admin"}); err != nil || !slices.Equal(of(b, noon), []string{"w1 1a", "w2 2b"}) {
		t.Errorf("%v, %v", of(b, noon), err)
	}
	if got := b.Gone(noon, noon); len(got) != 0 {
		t.Errorf("removed after noon: %v", got)
	}

	// One who never knew the machine learns its name, also where it has heard of the revocation before, from one who did not know it.
	nameless := Revocation{Origin: "1a", At: noon, By: "admin", Count: 1}
	stranger, _, err := Book{}.Merge([]Revocation{nameless})
	if err != nil || len(of(stranger, noon)) != 0 {
		t.Fatal(of(stranger, noon), err)
	}
	for range 2 {
		if stranger, _, err = stranger.Merge(b.Revoked); err != nil || !bytes.Equal(stranger.Digest(), b.Digest()) {
			t.Errorf("%v, %v", stranger.Revoked, err)
		}
		if stranger, _, err = stranger.Merge([]Revocation{nameless}); err != nil || !bytes.Equal(stranger.Digest(), b.Digest()) {
			t.Errorf("it has forgotten the name: %v, %v", stranger.Revoked, err)
		}
	}
	knew, _, err := all.Merge([]Revocation{nameless})
	if err != nil || !slices.Equal(of(knew, noon), []string{"w1 1a"}) {
		t.Errorf("%v, %v", of(knew, noon), err)
	}
	for _, bad := range []Revocation{{Name: "dora", Machine: "w1"}, {Origin: "1a", Machine: "a\nb"}} {
		if _, _, err := (Book{}).Merge([]Revocation{bad}); err == nil {
			t.Errorf("learnt %+v", bad)
		}
	}

	// The name is somebody's again: while a ticket is open, and of a member.
	open.Serial, open.Name = "3c", "w1"
	if b, err = b.Invite(open); err != nil || !slices.Equal(of(b, noon), []string{"w2 2b"}) || len(of(b, noon.Add(time.Hour))) != 2 {
		t.Errorf("%v, %v", of(b, noon), err)
	}
	member.Ticket = "3c"
	if b.Members = []Member{member}; !slices.Equal(of(b.settle(), noon.Add(time.Hour)), []string{"w2 2b"}) {
		t.Errorf("%v", of(b, noon))
	}
}
