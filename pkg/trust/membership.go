package trust

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"time"

	"github.com/orlop-os/orlop/pkg/pki"
)

const (
	// maxMembers, maxTickets and maxVoters bound a roll, which is sent in one message of 4 MiB.
	maxMembers = 5000
	maxTickets = 1000
	maxVoters  = 16
)

// Membership is what the control-plane machines of a cluster tell each other of its members. It can be
// merged in any order, and as often as one likes. A member, or a ticket, that was removed is in no
// roll; that it was removed stands among the revocations.
type Membership struct {
	Members  []Member        `json:"members,omitempty"` // in the order in which they came
	Tickets  []Ticket        `json:"tickets,omitempty"` // that nobody has come by, oldest first
	Bindings []TicketBinding `json:"claims,omitempty"`  // of these tickets
}

// Ticket is one that was issued. It does not change.
type Ticket struct {
	Serial  string    `json:"serial"` // hexadecimal
	Name    string    `json:"name"`   // of the machine that can come by it
	At      time.Time `json:"at"`
	Expires time.Time `json:"expires"`
	By      string    `json:"by"` // subject of who asked for it
	// Voters are the books (Book.ID) of the machines that say which key has shown it first. More
	// than half of all control-plane machines, Needs of them, have to say the same of a key before
	// its machine is let in: so it is one key at most. A book that was lost, and begun anew, is
	// another one, and has no say.
	Voters []string `json:"voters"`
	Quorum int      `json:"needs"`
}

// TicketBinding is what one control-plane machine has noted of a ticket: the first key that has shown it
// there. It is never given to another key.
type TicketBinding struct {
	Ticket string `json:"ticket"`
	Voter  string `json:"voter"` // the book
	Key    string `json:"key"`   // fingerprint of the machine's key
	// Address is from where that machine asked last. A book has it of its own claims only.
	Address string `json:"address,omitempty"`
}

// Session is what a machine knows of itself as long as it runs, and has to find out again when it
// has started: whether its book may be an older one, that was put back. The zero Session knows
// nothing.
type Session struct {
	heard map[string]bool // books, by ID, that were learnt from
	// tickets that were dropped, or not taken, because they had ended by the clock here
	forgot map[string]bool
}

// MarkSynced notes that all of a book has been learnt and written down.
func (s *Session) MarkSynced(book string) {
	if s.heard == nil {
		s.heard = map[string]bool{}
	}
	s.heard[book] = true
}

func (s *Session) forget(ticket string) {
	if s.forgot == nil {
		s.forgot = map[string]bool{}
	}
	s.forgot[ticket] = true
}

// MergeRevocations is both of two rolls: what either has, and of what both have the later.
func (r Membership) Merge(o Membership) Membership {
	return Membership{
		Members:  union(r.Members, o.Members, func(m Member) string { return m.Ticket }, laterMember, func(x, y Member) int { return x.Joined.Compare(y.Joined) }),
		Tickets:  union(r.Tickets, o.Tickets, func(t Ticket) string { return t.Serial }, laterTicket, func(x, y Ticket) int { return x.At.Compare(y.At) }),
		Bindings: union(r.Bindings, o.Bindings, func(c TicketBinding) string { return c.Ticket + " " + c.Voter }, laterClaim, func(TicketBinding, TicketBinding) int { return 0 }),
	}
}

// union has each thing of two lists once: of those with one name the greatest.
func union[T any](a, b []T, name func(T) string, later, order func(x, y T) int) []T {
	all := slices.Concat(a, b)
	slices.SortFunc(all, func(x, y T) int { return cmp.Or(cmp.Compare(name(x), name(y)), later(y, x)) })
	all = slices.CompactFunc(all, func(x, y T) bool { return name(x) == name(y) })
	slices.SortStableFunc(all, order)
	return all
}

// laterMember: who was renewed more often is later, whatever the clocks say.
func laterMember(x, y Member) int {
	return cmp.Or(cmp.Compare(x.Generation, y.Generation), x.Renewed.Compare(y.Renewed), x.Expires.Compare(y.Expires), x.Joined.Compare(y.Joined),
		cmp.Compare(x.Address, y.Address), cmp.Compare(x.Key, y.Key), cmp.Compare(x.Name, y.Name))
}

func laterTicket(x, y Ticket) int {
	return cmp.Or(x.At.Compare(y.At), x.Expires.Compare(y.Expires), cmp.Compare(x.Name, y.Name), cmp.Compare(x.By, y.By),
		cmp.Compare(x.Quorum, y.Quorum), slices.Compare(x.Voters, y.Voters))
}

func laterClaim(x, y TicketBinding) int {
	return cmp.Or(cmp.Compare(x.Key, y.Key), cmp.Compare(x.Address, y.Address))
}

// same tells whether two rolls in order hold the same.
func (r Membership) same(o Membership) bool {
	return slices.EqualFunc(r.Members, o.Members, func(x, y Member) bool { return x.Ticket == y.Ticket && laterMember(x, y) == 0 }) &&
		slices.EqualFunc(r.Tickets, o.Tickets, func(x, y Ticket) bool { return x.Serial == y.Serial && laterTicket(x, y) == 0 }) &&
		slices.Equal(r.Bindings, o.Bindings)
}

// settle drops from the roll what has come to an end: members that were removed, and tickets that
// were taken back, or used, with their claims. What is left is in order. The revocations keep the
// names of those machines.
func (b Ledger) settle() Ledger {
	b.Membership = b.Membership.Merge(Membership{})
	b = b.named()
	ended := map[string]bool{}
	for _, r := range b.Revoked {
		ended[r.Lineage] = true // a certificate is never restored
	}
	b.Members = slices.DeleteFunc(b.Members, func(m Member) bool { return ended[m.Ticket] })
	for _, m := range b.Members {
		ended[m.Ticket] = true
	}
	b.Tickets = slices.DeleteFunc(b.Tickets, func(t Ticket) bool { return ended[t.Serial] })
	open := map[string]bool{}
	for _, t := range b.Tickets {
		open[t.Serial] = true
	}
	b.Bindings = slices.DeleteFunc(b.Bindings, func(c TicketBinding) bool { return !open[c.Ticket] })
	return b
}

// named is the book whose revocations have the names of the machines that it still knows.
func (b Ledger) named() Ledger {
	names := map[string]string{} // by ticket
	for _, t := range b.Tickets {
		names[t.Serial] = t.Name
	}
	for _, m := range b.Members {
		names[m.Ticket] = m.Name
	}
	nameless := func(r Revocation) bool { return r.Machine == "" && r.Lineage != "" && names[r.Lineage] != "" }
	if !slices.ContainsFunc(b.Revoked, nameless) {
		return b
	}
	b.Revoked = slices.Clone(b.Revoked)
	for i, r := range b.Revoked {
		if nameless(r) {
			b.Revoked[i].Machine = names[r.Lineage]
		}
	}
	return b
}

// Public is the roll as others get it.
func (b Ledger) Public() Membership {
	out := Membership{Members: b.Members, Tickets: b.Tickets, Bindings: slices.Clone(b.Bindings)}
	for i := range out.Bindings {
		out.Bindings[i].Address = ""
	}
	return out
}

// PublicForTicket is what it tells of one ticket, and of the machine that came by it.
func (b Ledger) PublicForTicket(ticket string) Membership {
	all := b.Public()
	return Membership{
		Members:  slices.DeleteFunc(slices.Clone(all.Members), func(m Member) bool { return m.Ticket != ticket }),
		Tickets:  slices.DeleteFunc(slices.Clone(all.Tickets), func(t Ticket) bool { return t.Serial != ticket }),
		Bindings: slices.DeleteFunc(all.Bindings, func(c TicketBinding) bool { return c.Ticket != ticket }),
	}
}

// Digest is the same for rolls that hold the same.
func (r Membership) Digest() []byte {
	text, _ := json.Marshal(r) // it is made of text, numbers and times
	sum := sha256.Sum256(text)
	return sum[:]
}

// MergeMembership is the book with what another control-plane machine knows of the members, and whether any
// of that is news. A roll is taken whole or refused.
func (b Ledger) MergeMembership(learnt Membership, s *Session, now time.Time) (next Ledger, news bool, err error) {
	if err := learnt.check(); err != nil {
		return b, false, fmt.Errorf("members: cannot use what was sent: %w", err)
	}
	learnt.Tickets = s.current(learnt.Tickets, b.surely(now))
	// What this machine has said itself nobody else knows better.
	learnt.Bindings = slices.DeleteFunc(slices.Clone(learnt.Bindings), func(c TicketBinding) bool {
		return c.Voter == b.ID && slices.ContainsFunc(b.Bindings, func(own TicketBinding) bool { return own.Voter == b.ID && own.Ticket == c.Ticket })
	})
	next = b
	next.Membership = b.Membership.Merge(learnt)
	next = next.settle()
	if len(next.Members) > maxMembers || len(next.Tickets) > maxTickets {
		return b, false, fmt.Errorf("members: %d machines and %d open tickets are more than a cluster can have (%d and %d); remove some (`orlopctl nodes remove`)", len(next.Members), len(next.Tickets), maxMembers, maxTickets)
	}
	return next, !next.Membership.same(b.Membership), nil
}

// Prune is the book without tickets that ended long ago, and whether there were any.
func (b Ledger) Prune(s *Session, now time.Time) (Ledger, bool) {
	now = b.surely(now)
	if !slices.ContainsFunc(b.Tickets, func(t Ticket) bool { return longOver(t, now) }) {
		return b, false
	}
	b.Tickets = s.current(b.Tickets, now)
	return b.settle(), true
}

// current are the tickets that did not end long ago. It notes which did.
func (s *Session) current(all []Ticket, now time.Time) []Ticket {
	return slices.DeleteFunc(slices.Clone(all), func(t Ticket) bool {
		if longOver(t, now) {
			s.forget(t.Serial)
		}
		return longOver(t, now)
	})
}

func longOver(t Ticket, now time.Time) bool { return now.Sub(t.Expires) > keepExpired }

var bookID = regexp.MustCompile(`^[0-9a-f]{32}$`)

// CheckID tells whether a text can be a Book.ID.
func CheckID(id string) error {
	if !bookID.MatchString(id) {
		return fmt.Errorf("book %.80q: expected 32 hexadecimal digits", id)
	}
	return nil
}

// check refuses a roll that no book could hold.
func (r Membership) check() error {
	if len(r.Members) > maxMembers || len(r.Tickets) > maxTickets || len(r.Bindings) > maxTickets*maxVoters {
		return errors.New("it is too long")
	}
	var problems []error
	for _, m := range r.Members {
		problems = append(problems, m.Check())
	}
	for _, t := range r.Tickets {
		problems = append(problems, t.check())
	}
	for _, c := range r.Bindings {
		problems = append(problems, checkSerial(c.Ticket), checkKey(c.Key), CheckID(c.Voter))
		if c.Address != "" {
			problems = append(problems, errors.New("a claim has an address"))
		}
	}
	return errors.Join(problems...)
}

func checkSerial(s string) error {
	if p, err := ParseSerial(s); err != nil || p != s {
		return fmt.Errorf("serial %.80q", s)
	}
	return nil
}

func checkKey(k string) error {
	if p, err := pki.ParseFingerprint(k); err != nil || p != k {
		return fmt.Errorf("key %.80q", k)
	}
	return nil
}

// checkTimes refuses what cannot be written down (RFC 3339).
func checkTimes(times ...time.Time) error {
	for _, t := range times {
		if y := t.UTC().Year(); y < 1 || y > 9999 {
			return fmt.Errorf("the year %d", y)
		}
	}
	return nil
}

// Check tells whether a member can stand in a book.
func (m Member) Check() error {
	_, err := netip.ParseAddr(m.Address)
	return errors.Join(err, CheckHolder(m.Name), checkSerial(m.Ticket), checkKey(m.Key), checkTimes(m.Joined, m.Renewed, m.Expires))
}

func (t Ticket) check() error {
	if len(t.By) > maxBy {
		return fmt.Errorf("ticket %s: by %.80q", t.Serial, t.By)
	}
	// Two sets of so many have one in common, or two keys could come by it.
	if len(t.Voters) > maxVoters || t.Quorum > len(t.Voters) || 2*t.Quorum <= len(t.Voters) {
		return fmt.Errorf("ticket %s: %d of %d voters", t.Serial, t.Quorum, len(t.Voters))
	}
	if sorted := slices.Sorted(slices.Values(t.Voters)); len(slices.Compact(sorted)) != len(t.Voters) {
		return fmt.Errorf("ticket %s: a voter twice", t.Serial)
	}
	problems := []error{CheckHolder(t.Name), checkSerial(t.Serial), checkTimes(t.At, t.Expires)}
	for _, v := range t.Voters {
		problems = append(problems, CheckID(v))
	}
	return errors.Join(problems...)
}
