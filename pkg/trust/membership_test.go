package trust

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// id and finger return the ID of a ledger and the fingerprint of a key.
func id(n int) string     { return fmt.Sprintf("%032x", n) }
func finger(n int) string { return fmt.Sprintf("sha256:%064x", n) }

// three returns the ledgers of three control-plane machines that have synced with each other and
// know the ticket 1a for w.
func three(t *testing.T) ([]Ledger, []*Session) {
	ledgers, sessions := make([]Ledger, 3), make([]*Session, 3)
	ticket := Ticket{Serial: "1a", Name: "w", At: noon, Expires: noon.Add(time.Hour), Voters: []string{id(0), id(1), id(2)}, Quorum: Majority(3)}
	for i := range ledgers {
		ledgers[i], sessions[i] = Ledger{}.WithID(id(i)), &Session{}
		for j := range ledgers {
			sessions[i].MarkSynced(id(j))
		}
		var err error
		if ledgers[i], err = ledgers[i].AddTicket(ticket); err != nil {
			t.Fatal(err)
		}
	}
	return ledgers, sessions
}

func candidate(key int) Member {
	return Member{Name: "w", Ticket: "1a", Key: finger(key), Address: fmt.Sprint("10.0.0.", 20+key), Renewed: noon}
}

// vote makes a control-plane machine vote for a machine.
func vote(t *testing.T, b *Ledger, s *Session, m Member) {
	t.Helper()
	next, err := b.Vote(m, false, s, noon)
	if err != nil {
		t.Fatal(err)
	}
	*b = next
}

func wantError(t *testing.T, why string, err error) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), why) {
		t.Errorf("want %q, got %v", why, err)
	}
}

func TestOneKeyPerTicket(t *testing.T) {
	ledgers, sessions := three(t)
	vote(t, &ledgers[0], sessions[0], candidate(1))
	_, err := ledgers[0].Admit(candidate(1), false, 3, 1) // other votes count only for members
	if !errors.Is(err, ErrNoQuorum) {
		t.Errorf("one of three lets it in: %v", err)
	}
	_, err = ledgers[0].Vote(candidate(2), false, sessions[0], noon)
	wantError(t, "another machine has also presented it", err)
	vote(t, &ledgers[1], sessions[1], candidate(1))
	merged, news, err := ledgers[0].MergeMembership(ledgers[1].Public(), sessions[0], noon)
	if err != nil || !news {
		t.Fatal(news, err)
	}
	admitted, err := merged.Admit(candidate(1), false, 0, 2)
	if err != nil || len(admitted.Members) != 1 || len(admitted.Tickets)+len(admitted.Bindings) != 0 || admitted.Members[0].Generation != 1 {
		t.Fatalf("%+v, %v", admitted.Membership, err)
	}
	// The third voter got no request so far. It votes for another key, which does not help that
	// key.
	vote(t, &ledgers[2], sessions[2], candidate(2))
	late, _, err := ledgers[2].MergeMembership(merged.Public(), sessions[2], noon)
	if err != nil {
		t.Fatal(err)
	}
	_, err = late.Admit(candidate(2), false, 3, 2)
	wantError(t, "another machine has used it; ", err)
	late, _, err = late.MergeMembership(admitted.Public(), sessions[2], noon)
	if err != nil || len(late.Bindings) != 0 {
		t.Fatal(late.Bindings, err)
	}
	_, err = late.Vote(candidate(2), false, sessions[2], noon)
	wantError(t, "another machine has used it at 2026-05-01T12:00:00Z", err)
	if _, err := late.Vote(candidate(1), false, sessions[2], noon); err != nil {
		t.Errorf("it asks again: %v", err)
	}
	if _, err := late.Admit(candidate(1), false, 1, 2); !errors.Is(err, ErrNoQuorum) {
		t.Errorf("one of three lets a member in again: %v", err)
	}
}

func TestSplitTicketIsSpent(t *testing.T) {
	ledgers, sessions := three(t)
	for i := range ledgers {
		vote(t, &ledgers[i], sessions[i], candidate(i+1))
	}
	for i := range ledgers {
		for j := range ledgers {
			var err error
			if ledgers[i], _, err = ledgers[i].MergeMembership(ledgers[j].Public(), sessions[i], noon); err != nil {
				t.Fatal(err)
			}
		}
		_, err := ledgers[i].Admit(candidate(i+1), false, 3, 2)
		wantError(t, "it is spent and none of them can join with it", err)
		// Another ticket for the same name is valid.
		again := Ticket{Serial: "2b", Name: "w", At: noon.Add(time.Minute), Expires: noon.Add(time.Hour), Voters: []string{id(0), id(1), id(2)}, Quorum: 2}
		if ledgers[i], err = ledgers[i].AddTicket(again); err != nil {
			t.Fatal(err)
		}
		m := candidate(1)
		m.Ticket = "2b"
		if _, err := ledgers[i].Vote(m, false, sessions[i], noon); err != nil {
			t.Errorf("machine %d: %v", i, err)
		}
	}
}

// TestNoVote: a ledger that replaced a lost ledger, a ledger that may be older than its machine's
// votes, and a ledger that dropped the ticket because of a wrong clock.
func TestNoVote(t *testing.T) {
	ledgers, _ := three(t)
	lost, _, err := Ledger{}.WithID(id(9)).MergeMembership(ledgers[1].Public(), &Session{}, noon)
	if err != nil {
		t.Fatal(err)
	}
	all := &Session{}
	for i := range 3 {
		all.MarkSynced(id(i))
	}
	_, err = lost.Vote(candidate(1), false, all, noon)
	wantError(t, "is not a voter of the ticket", err)

	started := &Session{}
	started.MarkSynced(id(1))
	_, err = ledgers[0].Vote(candidate(1), false, started, noon)
	wantError(t, "has restarted since it was issued", err)
	started.MarkSynced(id(2))
	if _, err = ledgers[0].Vote(candidate(1), false, started, noon); err != nil {
		t.Error(err)
	}

	ahead := noon.Add(time.Hour + keepExpired + time.Second)
	pruned, some := ledgers[0].Prune(all, ahead)
	if !some || len(pruned.Tickets) != 0 {
		t.Errorf("kept %v", pruned.Tickets)
	}
	if pruned, _, err = pruned.MergeMembership(ledgers[1].Public(), all, ahead); err != nil || len(pruned.Tickets) != 0 {
		t.Errorf("took %v, %v", pruned.Tickets, err)
	}
	if pruned, _, err = pruned.MergeMembership(ledgers[1].Public(), all, noon); err != nil || len(pruned.Tickets) != 1 {
		t.Errorf("took %v, %v", pruned.Tickets, err)
	}
	_, err = pruned.Vote(candidate(1), false, all, noon)
	wantError(t, "or no longer", err)
	_, err = ledgers[1].Vote(candidate(1), false, all, noon.Add(time.Hour))
	wantError(t, "it expired at 2026-05-01T13:00:00Z", err)
	other := candidate(1)
	other.Name = "v"
	_, err = ledgers[1].Vote(other, false, all, noon)
	wantError(t, "does not know it", err)
}

// TestVotedNameIsTaken: while a machine may have been admitted elsewhere, no other machine can use
// its name or address.
func TestVotedNameIsTaken(t *testing.T) {
	ledgers, sessions := three(t)
	vote(t, &ledgers[0], sessions[0], candidate(1))
	b := ledgers[0]
	for _, name := range []string{"w", "v"} {
		var err error
		if b, err = b.AddTicket(Ticket{Serial: map[string]string{"w": "2b", "v": "3c"}[name], Name: name, At: noon, Expires: noon.Add(time.Hour), Voters: []string{id(0)}, Quorum: 1}); err != nil {
			t.Fatal(err)
		}
	}
	namesake := Member{Name: "w", Ticket: "2b", Key: finger(2), Address: "10.0.0.99", Renewed: noon}
	_, err := b.Vote(namesake, false, sessions[0], noon)
	wantError(t, "another machine has presented another ticket for this name", err)
	neighbour := Member{Name: "v", Ticket: "3c", Key: finger(2), Address: candidate(1).Address, Renewed: noon}
	_, err = b.Vote(neighbour, false, sessions[0], noon)
	wantError(t, "a machine with a ticket for w has the address 10.0.0.21", err)
	_, err = b.Vote(neighbour, true, sessions[0], noon) // a member that this ledger does not know
	wantError(t, "has the address 10.0.0.21", err)
	// the ticket has expired, and the other machine may just have joined with it
	_, err = b.Vote(neighbour, true, sessions[0], noon.Add(time.Hour))
	wantError(t, "has the address 10.0.0.21", err)
	removed, tickets, err := b.Remove("w", noon, "admin")
	if err != nil || len(tickets) != 2 {
		t.Fatal(tickets, err)
	}
	if _, err := removed.Vote(neighbour, false, sessions[0], noon); err != nil {
		t.Error(err)
	}
	for _, m := range []Member{namesake, candidate(1)} {
		_, err = removed.Vote(m, true, sessions[0], noon)
		wantError(t, "it was revoked", err)
		_, err = removed.Admit(m, true, 3, 2)
		wantError(t, "it was revoked", err)
	}
	// An older ledger does not bring them back.
	again, _, err := removed.MergeMembership(b.Public(), sessions[0], noon)
	if err != nil || len(again.Tickets) != 1 || again.Tickets[0].Name != "v" {
		t.Errorf("%+v, %v", again.Membership, err)
	}
}

func TestBegin(t *testing.T) {
	older := Ledger{Issued: []Issued{{Serial: "1a", Name: "w", Role: RoleJoin, Expires: noon.Add(time.Hour)}, {Serial: "2b", Name: "dora", Role: "reader"}, {Serial: "3c", Name: "v", Role: RoleJoin}},
		Membership: Membership{Members: []Member{{Name: "v", Ticket: "3c"}}}}
	b := older.WithID(id(1))
	if len(b.Tickets) != 1 || b.Tickets[0].Serial != "1a" || len(b.Issued) != 1 || b.Issued[0].Name != "dora" {
		t.Errorf("%+v", b)
	}
	b, err := b.Vote(candidate(1), false, &Session{}, noon)
	if err == nil {
		b, err = b.Admit(candidate(1), false, 1, 1)
	}
	if err != nil || len(b.Members) != 2 {
		t.Errorf("%v, %v", b.Members, err)
	}
}

// randomMembership returns a membership that a ledger could contain.
func randomMembership(random *rand.Rand) Membership {
	var r Membership
	serial := func() string { return fmt.Sprintf("%x", 1+random.IntN(6)) }
	at := func() time.Time { return noon.Add(time.Duration(random.IntN(4)) * time.Minute) }
	for range random.IntN(4) {
		r.Members = append(r.Members, Member{Name: string(rune('u' + random.IntN(3))), Ticket: serial(), Key: finger(random.IntN(3)), Address: fmt.Sprint("10.0.0.", random.IntN(3)),
			Joined: at(), Renewed: at(), Expires: at(), Generation: random.Uint64N(3)})
	}
	for range random.IntN(5) {
		t := Ticket{Serial: serial(), Name: string(rune('u' + random.IntN(3))), At: at(), Expires: at(), Voters: []string{id(random.IntN(2))}, Quorum: 1}
		r.Tickets = append(r.Tickets, t)
		for range random.IntN(3) {
			r.Bindings = append(r.Bindings, TicketBinding{Ticket: t.Serial, Voter: id(random.IntN(3)), Key: finger(random.IntN(3))})
		}
	}
	return r
}

// TestMergesAgree: machines that merge members and removals in any order, and any number of times,
// reach the same state.
func TestMergesAgree(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 500 {
		// A replicated membership was in a ledger before.
		var rolls []Membership
		for range 3 {
			b, _, err := Ledger{}.MergeMembership(randomMembership(random), &Session{}, noon)
			if err != nil {
				t.Fatal(err)
			}
			rolls = append(rolls, b.Public())
		}
		removed := []Revocation{{Lineage: fmt.Sprintf("%x", 1+random.IntN(6)), Generation: 1, At: noon}}
		var want []byte
		for range 4 {
			b, s := Ledger{}, &Session{}
			done := false
			for n, i := range append(random.Perm(3), random.Perm(3)...) {
				if !done && (random.IntN(3) == 0 || n == 5) {
					var err error
					if b, _, err = b.MergeRevocations(removed, noon); err != nil {
						t.Fatal(err)
					}
					done = true
				}
				next, news, err := b.MergeMembership(rolls[i], s, noon)
				if err != nil {
					t.Fatal(err)
				}
				if n >= 3 && done && news {
					t.Fatal("merged twice")
				}
				b = next
			}
			if want == nil {
				want = b.Public().Digest()
			}
			if !bytes.Equal(b.Public().Digest(), want) {
				t.Fatalf("they do not agree: %+v", b.Membership)
			}
			for _, m := range b.Members {
				if m.Ticket == removed[0].Lineage {
					t.Fatal("a removed machine is a member")
				}
			}
		}
		// Two at a time, in either grouping.
		x, y, z := rolls[0], rolls[1], rolls[2]
		if !bytes.Equal(x.Merge(y).Merge(z).Digest(), x.Merge(y.Merge(z)).Digest()) || !bytes.Equal(x.Merge(y).Digest(), y.Merge(x).Digest()) || !bytes.Equal(x.Merge(x).Digest(), x.Digest()) {
			t.Fatalf("merging depends on the order:\n%+v\n%+v\n%+v", x, y, z)
		}
	}
}

func TestMergeRejectsInvalid(t *testing.T) {
	good := Ticket{Serial: "1a", Name: "w", Voters: []string{id(1)}, Quorum: 1, Expires: noon}
	ticket := func(change func(*Ticket)) Membership {
		c := good
		change(&c)
		return Membership{Tickets: []Ticket{c}}
	}
	for what, r := range map[string]Membership{
		"a serial":            ticket(func(c *Ticket) { c.Serial = "0x1A" }),
		"a name":              ticket(func(c *Ticket) { c.Name = "a\nb" }),
		"half of the voters":  ticket(func(c *Ticket) { c.Voters = []string{id(1), id(2)} }),
		"more than there are": ticket(func(c *Ticket) { c.Quorum = 2 }),
		"a voter twice":       ticket(func(c *Ticket) { c.Voters, c.Quorum = []string{id(1), id(1)}, 2 }),
		"a voter's name":      ticket(func(c *Ticket) { c.Voters = []string{"b"} }),
		"a long subject":      ticket(func(c *Ticket) { c.By = strings.Repeat("x", 129) }),
		"a member's key":      {Members: []Member{{Name: "w", Ticket: "1a", Key: "k", Address: "10.0.0.1"}}},
		"a member's address":  {Members: []Member{{Name: "w", Ticket: "1a", Key: finger(1), Address: "w"}}},
		"a time":              {Members: []Member{{Name: "w", Ticket: "1a", Key: finger(1), Address: "10.0.0.1", Renewed: noon.AddDate(9000, 0, 0)}}},
		"a claim's address":   {Bindings: []TicketBinding{{Ticket: "1a", Voter: id(1), Key: finger(1), Address: "10.0.0.1"}}},
		"a claim's voter":     {Bindings: []TicketBinding{{Ticket: "1a", Voter: "1", Key: finger(1)}}},
		"too many":            {Tickets: slices.Repeat([]Ticket{good}, maxTickets+1)},
	} {
		if next, news, err := (Ledger{}).MergeMembership(r, &Session{}, noon); err == nil || news || len(next.Tickets)+len(next.Members)+len(next.Bindings) > 0 {
			t.Errorf("%s: accepted %+v", what, next.Membership)
		}
	}
	if _, news, err := (Ledger{}).MergeMembership(Membership{Tickets: []Ticket{good}}, &Session{}, noon); err != nil || !news {
		t.Error(news, err)
	}
	full := Ledger{}.WithID(id(1))
	for n := range maxTickets {
		full.Tickets = append(full.Tickets, Ticket{Serial: fmt.Sprintf("%x", n+1), Name: "w"})
	}
	if _, err := full.AddTicket(Ticket{Serial: "ffff", Name: "v", Voters: []string{id(1)}, Quorum: 1}); err == nil {
		t.Error("issues more tickets than there is room for")
	}
	if next, _, err := full.MergeMembership(Membership{Tickets: []Ticket{{Serial: "ffff", Name: "v", Voters: []string{id(1)}, Quorum: 1, Expires: noon}}}, &Session{}, noon); err == nil || len(next.Tickets) != maxTickets {
		t.Error("learns more tickets than there is room for")
	}
}

// FuzzMergeMembership merges an arbitrary membership. The ledger accepts all of it or none, reports
// it as news once, admits no removed machine, and never binds its own vote to another key.
func FuzzMergeMembership(f *testing.F) {
	random := rand.New(rand.NewPCG(5, 6))
	for range 4 {
		text, err := json.Marshal(randomMembership(random))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		var received Membership
		if json.Unmarshal(sent, &received) != nil {
			return
		}
		b, _, err := Ledger{}.WithID(id(1)).MergeRevocations([]Revocation{{Lineage: "1", Generation: 1}}, noon)
		if err != nil {
			t.Fatal(err)
		}
		b.Tickets = []Ticket{{Serial: "2", Name: "v", Expires: noon.Add(time.Hour), Voters: []string{id(1)}, Quorum: 1}}
		b.Bindings = []TicketBinding{{Ticket: "2", Voter: id(1), Key: finger(1), Address: "10.0.0.1"}}
		next, news, err := b.MergeMembership(received, &Session{}, noon)
		if err != nil {
			if news || !bytes.Equal(next.Membership.Digest(), b.Membership.Digest()) {
				t.Fatal("refused, and taken")
			}
			return
		}
		if _, again, err := next.MergeMembership(received, &Session{}, noon); err != nil || again {
			t.Fatalf("merged twice: %v", err)
		}
		for _, m := range next.Members {
			if m.Ticket == "1" {
				t.Fatal("a removed machine is a member")
			}
		}
		for _, c := range next.Bindings {
			if c.Ticket == "2" && c.Voter == id(1) && c != b.Bindings[0] {
				t.Fatalf("what it has said itself became %+v", c)
			}
		}
		if err := next.Public().check(); err != nil {
			t.Fatalf("cannot be told: %v", err)
		}
		if _, err := json.Marshal(next); err != nil {
			t.Fatalf("cannot be written down: %v", err)
		}
	})
}
