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
)

// id returns the ID of the ledger with the number n. finger returns the fingerprint of the key with
// the number n.
func id(n int) string     { return fmt.Sprintf("%032x", n) }
func finger(n int) string { return fmt.Sprintf("sha256:%064x", n) }

// TestBegin checks that WithID converts the ledger of a version without ledger IDs: an unused join
// ticket moves from the issued certificates to Tickets, and a machine can join with this ticket.
func TestBegin(t *testing.T) {
	older := Ledger{Issued: []Issued{{Serial: "1a", Name: "w", Role: RoleJoin, Expires: noon.Add(time.Hour)}, {Serial: "2b", Name: "dora", Role: "reader"}, {Serial: "3c", Name: "v", Role: RoleJoin}},
		Membership: Membership{Members: []Member{{Name: "v", Ticket: "3c"}}}}
	b := older.WithID(id(1))
	if len(b.Tickets) != 1 || b.Tickets[0].Serial != "1a" || len(b.Issued) != 1 || b.Issued[0].Name != "dora" {
		t.Errorf("%+v", b)
	}
	w := Member{Name: "w", Ticket: "1a", Key: finger(1), Address: "10.0.0.21", Renewed: noon}
	b, err := b.Vote(w, false, &Session{}, noon)
	if err == nil {
		b, err = b.Admit(w, false, 1, 1)
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

// TestMergesAgree checks that machines reach the same state if they merge the same members and
// removals, in any order and any number of times.
func TestMergesAgree(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 500 {
		// A peer only sends the membership of its ledger, so each random membership passes through
		// a ledger.
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
					t.Fatal("a second merge of the same membership reports a change")
				}
				b = next
			}
			if want == nil {
				want = b.Public().Digest()
			}
			if !bytes.Equal(b.Public().Digest(), want) {
				t.Fatalf("the machines have different states: %+v", b.Membership)
			}
			for _, m := range b.Members {
				if m.Ticket == removed[0].Lineage {
					t.Fatal("a removed machine is a member")
				}
			}
		}
		// A merge is associative, commutative and idempotent.
		x, y, z := rolls[0], rolls[1], rolls[2]
		if !bytes.Equal(x.Merge(y).Merge(z).Digest(), x.Merge(y.Merge(z)).Digest()) || !bytes.Equal(x.Merge(y).Digest(), y.Merge(x).Digest()) || !bytes.Equal(x.Merge(x).Digest(), x.Digest()) {
			t.Fatalf("Merge is not associative, commutative or idempotent:\n%+v\n%+v\n%+v", x, y, z)
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
	for name, r := range map[string]Membership{
		"an invalid serial number":                   ticket(func(c *Ticket) { c.Serial = "0x1A" }),
		"an invalid name":                            ticket(func(c *Ticket) { c.Name = "a\nb" }),
		"a quorum of half of the voters":             ticket(func(c *Ticket) { c.Voters = []string{id(1), id(2)} }),
		"a quorum of more than all voters":           ticket(func(c *Ticket) { c.Quorum = 2 }),
		"a voter twice":                              ticket(func(c *Ticket) { c.Voters, c.Quorum = []string{id(1), id(1)}, 2 }),
		"an invalid voter":                           ticket(func(c *Ticket) { c.Voters = []string{"b"} }),
		"a long subject":                             ticket(func(c *Ticket) { c.By = strings.Repeat("x", 129) }),
		"an invalid key of a member":                 {Members: []Member{{Name: "w", Ticket: "1a", Key: "k", Address: "10.0.0.1"}}},
		"an invalid address of a member":             {Members: []Member{{Name: "w", Ticket: "1a", Key: finger(1), Address: "w"}}},
		"an invalid time":                            {Members: []Member{{Name: "w", Ticket: "1a", Key: finger(1), Address: "10.0.0.1", Renewed: noon.AddDate(9000, 0, 0)}}},
		"a binding of another voter with an address": {Bindings: []TicketBinding{{Ticket: "1a", Voter: id(1), Key: finger(1), Address: "10.0.0.1"}}},
		"an invalid voter of a binding":              {Bindings: []TicketBinding{{Ticket: "1a", Voter: "1", Key: finger(1)}}},
		"too many tickets":                           {Tickets: slices.Repeat([]Ticket{good}, maxTickets+1)},
	} {
		if next, news, err := (Ledger{}).MergeMembership(r, &Session{}, noon); err == nil || news || len(next.Tickets)+len(next.Members)+len(next.Bindings) > 0 {
			t.Errorf("%s: accepted %+v", name, next.Membership)
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
		t.Error("AddTicket exceeds the maximum number of tickets")
	}
	if next, _, err := full.MergeMembership(Membership{Tickets: []Ticket{{Serial: "ffff", Name: "v", Voters: []string{id(1)}, Quorum: 1, Expires: noon}}}, &Session{}, noon); err == nil || len(next.Tickets) != maxTickets {
		t.Error("a merge exceeds the maximum number of tickets")
	}
}

// FuzzMergeMembership merges an arbitrary membership. The ledger accepts the whole membership or no
// part of it, and reports a change only for the first merge. It admits no removed machine, and
// never changes its own ticket bindings to other keys.
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
				t.Fatal("the membership is rejected, but the ledger has changed")
			}
			return
		}
		if _, again, err := next.MergeMembership(received, &Session{}, noon); err != nil || again {
			t.Fatalf("a second merge reports a change: %v", err)
		}
		for _, m := range next.Members {
			if m.Ticket == "1" {
				t.Fatal("a removed machine is a member")
			}
		}
		for _, c := range next.Bindings {
			if c.Ticket == "2" && c.Voter == id(1) && c != b.Bindings[0] {
				t.Fatalf("the ledger's own binding has changed to %+v", c)
			}
		}
		if err := next.Public().check(); err != nil {
			t.Fatalf("the membership cannot be sent: %v", err)
		}
		if _, err := json.Marshal(next); err != nil {
			t.Fatalf("the ledger cannot be stored: %v", err)
		}
	})
}
