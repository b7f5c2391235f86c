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
	// maxMembers, maxTickets and maxVoters bound a membership, because one message of 4 MiB
	// transports it.
	maxMembers = 5000
	maxTickets = 1000
	maxVoters  = 16
)

// Membership is the state about members that the control-plane machines of a cluster replicate.
// Merge works in any order and any number of times. A membership never contains a removed member or
// a revoked ticket; the revocations record the removal.
type Membership struct {
	Members  []Member        `json:"members,omitempty"`  // in the order of joining
	Tickets  []Ticket        `json:"tickets,omitempty"`  // unused tickets, oldest first
	Bindings []TicketBinding `json:"bindings,omitempty"` // bindings of the unused tickets
}

// Ticket is an issued join ticket. It never changes.
type Ticket struct {
	Serial  string    `json:"serial"` // hexadecimal
	Name    string    `json:"name"`   // name of the machine that can join with it
	At      time.Time `json:"at"`
	Expires time.Time `json:"expires"`
	By      string    `json:"by"` // subject of the caller that created it
	// Voters lists the ledgers (Ledger.ID) of the machines that vote on the ticket. Quorum of them,
	// more than half of all control-plane machines, must record the same first key before they
	// admit its machine. So at most one key can join. A ledger that replaces a lost ledger has a
	// different ID and no vote.
	Voters []string `json:"voters"`
	Quorum int      `json:"quorum"`
}

// TicketBinding is the record of one voter for a ticket: the first key that presented the ticket to
// this voter. The binding never changes to another key.
type TicketBinding struct {
	Ticket string `json:"ticket"`
	Voter  string `json:"voter"` // ID of the voter's ledger
	Key    string `json:"key"`   // fingerprint of the machine's key
	// Address is the source address of the machine's last call. Only the voter's own ledger has it.
	Address string `json:"address,omitempty"`
}

// Session is the state that a machine loses when it restarts: it shows whether the ledger on the
// disk may be an older copy. After a restart the machine must sync with its peers again. The zero
// Session is the state after a start.
type Session struct {
	synced map[string]bool // IDs of the ledgers that were merged
	// tickets that were dropped or ignored because they had expired by the local clock
	dropped map[string]bool
}

// MarkSynced records that the ledger of a peer, by its ID, was merged and stored completely.
func (s *Session) MarkSynced(id string) {
	if s.synced == nil {
		s.synced = map[string]bool{}
	}
	s.synced[id] = true
}

func (s *Session) drop(ticket string) {
	if s.dropped == nil {
		s.dropped = map[string]bool{}
	}
	s.dropped[ticket] = true
}

// Merge returns the union of two memberships. For an item in both, it takes the later version.
func (r Membership) Merge(o Membership) Membership {
	return Membership{
		Members:  union(r.Members, o.Members, func(m Member) string { return m.Ticket }, laterMember, func(x, y Member) int { return x.Joined.Compare(y.Joined) }),
		Tickets:  union(r.Tickets, o.Tickets, func(t Ticket) string { return t.Serial }, laterTicket, func(x, y Ticket) int { return x.At.Compare(y.At) }),
		Bindings: union(r.Bindings, o.Bindings, func(c TicketBinding) string { return c.Ticket + " " + c.Voter }, laterBinding, func(TicketBinding, TicketBinding) int { return 0 }),
	}
}

// union returns the items of two lists without duplicates: of items with the same name it returns
// the greatest.
func union[T any](a, b []T, name func(T) string, later, order func(x, y T) int) []T {
	all := slices.Concat(a, b)
	slices.SortFunc(all, func(x, y T) int { return cmp.Or(cmp.Compare(name(x), name(y)), later(y, x)) })
	all = slices.CompactFunc(all, func(x, y T) bool { return name(x) == name(y) })
	slices.SortStableFunc(all, order)
	return all
}

// laterMember compares two versions of a member. The version with more renewals is later,
// regardless of the clocks.
func laterMember(x, y Member) int {
	return cmp.Or(cmp.Compare(x.Generation, y.Generation), x.Renewed.Compare(y.Renewed), x.Expires.Compare(y.Expires), x.Joined.Compare(y.Joined),
		cmp.Compare(x.Address, y.Address), cmp.Compare(x.Key, y.Key), cmp.Compare(x.Name, y.Name))
}

func laterTicket(x, y Ticket) int {
	return cmp.Or(x.At.Compare(y.At), x.Expires.Compare(y.Expires), cmp.Compare(x.Name, y.Name), cmp.Compare(x.By, y.By),
		cmp.Compare(x.Quorum, y.Quorum), slices.Compare(x.Voters, y.Voters))
}

func laterBinding(x, y TicketBinding) int {
	return cmp.Or(cmp.Compare(x.Key, y.Key), cmp.Compare(x.Address, y.Address))
}

// same reports whether two sorted memberships are equal.
func (r Membership) same(o Membership) bool {
	return slices.EqualFunc(r.Members, o.Members, func(x, y Member) bool { return x.Ticket == y.Ticket && laterMember(x, y) == 0 }) &&
		slices.EqualFunc(r.Tickets, o.Tickets, func(x, y Ticket) bool { return x.Serial == y.Serial && laterTicket(x, y) == 0 }) &&
		slices.Equal(r.Bindings, o.Bindings)
}

// normalize drops ended items from the membership: removed members, and revoked or used tickets
// with their bindings. The remaining items are sorted. The revocations retain the names of the
// dropped machines.
func (l Ledger) normalize() Ledger {
	l.Membership = l.Membership.Merge(Membership{})
	l = l.withMachineNames()
	ended := map[string]bool{}
	for _, r := range l.Revoked {
		ended[r.Lineage] = true // the revocation of a certificate is never undone
	}
	l.Members = slices.DeleteFunc(l.Members, func(m Member) bool { return ended[m.Ticket] })
	for _, m := range l.Members {
		ended[m.Ticket] = true
	}
	l.Tickets = slices.DeleteFunc(l.Tickets, func(t Ticket) bool { return ended[t.Serial] })
	open := map[string]bool{}
	for _, t := range l.Tickets {
		open[t.Serial] = true
	}
	l.Bindings = slices.DeleteFunc(l.Bindings, func(c TicketBinding) bool { return !open[c.Ticket] })
	return l
}

// withMachineNames returns the ledger with the machine name in each revocation of a ticket that the
// membership still contains.
func (l Ledger) withMachineNames() Ledger {
	names := map[string]string{} // by ticket
	for _, t := range l.Tickets {
		names[t.Serial] = t.Name
	}
	for _, m := range l.Members {
		names[m.Ticket] = m.Name
	}
	nameless := func(r Revocation) bool { return r.Machine == "" && r.Lineage != "" && names[r.Lineage] != "" }
	if !slices.ContainsFunc(l.Revoked, nameless) {
		return l
	}
	l.Revoked = slices.Clone(l.Revoked)
	for i, r := range l.Revoked {
		if nameless(r) {
			l.Revoked[i].Machine = names[r.Lineage]
		}
	}
	return l
}

// Public returns the membership without private fields, for replication to peers.
func (l Ledger) Public() Membership {
	out := Membership{Members: l.Members, Tickets: l.Tickets, Bindings: slices.Clone(l.Bindings)}
	for i := range out.Bindings {
		out.Bindings[i].Address = ""
	}
	return out
}

// PublicForTicket returns the part of the public membership about one ticket and the machine that
// joined with it.
func (l Ledger) PublicForTicket(ticket string) Membership {
	all := l.Public()
	return Membership{
		Members:  slices.DeleteFunc(slices.Clone(all.Members), func(m Member) bool { return m.Ticket != ticket }),
		Tickets:  slices.DeleteFunc(slices.Clone(all.Tickets), func(t Ticket) bool { return t.Serial != ticket }),
		Bindings: slices.DeleteFunc(all.Bindings, func(c TicketBinding) bool { return c.Ticket != ticket }),
	}
}

// Digest returns a hash that is equal for equal memberships.
func (r Membership) Digest() []byte {
	text, _ := json.Marshal(r) // cannot fail: only strings, numbers and times
	sum := sha256.Sum256(text)
	return sum[:]
}

// MergeMembership merges the membership of another control-plane machine into the ledger, and
// reports whether it changed the ledger. It accepts the whole membership or rejects it.
func (l Ledger) MergeMembership(received Membership, s *Session, now time.Time) (next Ledger, changed bool, err error) {
	if err := received.check(); err != nil {
		return l, false, fmt.Errorf("members: cannot use received membership: %w", err)
	}
	received.Tickets = s.pruneTickets(received.Tickets, l.pruneTime(now))
	// No peer knows the votes of this machine better than the machine itself.
	received.Bindings = slices.DeleteFunc(slices.Clone(received.Bindings), func(c TicketBinding) bool {
		return c.Voter == l.ID && slices.ContainsFunc(l.Bindings, func(own TicketBinding) bool { return own.Voter == l.ID && own.Ticket == c.Ticket })
	})
	next = l
	next.Membership = l.Membership.Merge(received)
	next = next.normalize()
	if len(next.Members) > maxMembers || len(next.Tickets) > maxTickets {
		return l, false, fmt.Errorf("members: %d machines and %d open tickets exceed the limits of a cluster (%d and %d); remove some (`orlopctl nodes remove`)", len(next.Members), len(next.Tickets), maxMembers, maxTickets)
	}
	return next, !next.Membership.same(l.Membership), nil
}

// Prune returns the ledger without long-expired tickets, and reports whether there were any.
func (l Ledger) Prune(s *Session, now time.Time) (Ledger, bool) {
	now = l.pruneTime(now)
	if !slices.ContainsFunc(l.Tickets, func(t Ticket) bool { return longExpired(t, now) }) {
		return l, false
	}
	l.Tickets = s.pruneTickets(l.Tickets, now)
	return l.normalize(), true
}

// pruneTickets returns the tickets without long-expired ones. It records the dropped tickets in the
// session.
func (s *Session) pruneTickets(all []Ticket, now time.Time) []Ticket {
	return slices.DeleteFunc(slices.Clone(all), func(t Ticket) bool {
		if longExpired(t, now) {
			s.drop(t.Serial)
		}
		return longExpired(t, now)
	})
}

func longExpired(t Ticket, now time.Time) bool { return now.Sub(t.Expires) > keepExpired }

var ledgerID = regexp.MustCompile(`^[0-9a-f]{32}$`)

// CheckID returns an error if id is not a valid Ledger.ID.
func CheckID(id string) error {
	if !ledgerID.MatchString(id) {
		return fmt.Errorf("ledger %.80q: expected 32 hexadecimal digits", id)
	}
	return nil
}

// check rejects a membership that no ledger can contain.
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
			problems = append(problems, errors.New("a ticket binding has an address"))
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

// checkTimes rejects times that RFC 3339 cannot represent.
func checkTimes(times ...time.Time) error {
	for _, t := range times {
		if y := t.UTC().Year(); y < 1 || y > 9999 {
			return fmt.Errorf("the year %d", y)
		}
	}
	return nil
}

// Check returns an error if a ledger cannot contain the member.
func (m Member) Check() error {
	_, err := netip.ParseAddr(m.Address)
	return errors.Join(err, CheckHolder(m.Name), checkSerial(m.Ticket), checkKey(m.Key), checkTimes(m.Joined, m.Renewed, m.Expires))
}

func (t Ticket) check() error {
	if len(t.By) > maxBy {
		return fmt.Errorf("ticket %s: by %.80q", t.Serial, t.By)
	}
	// Any two quorums must have a voter in common; otherwise two keys could join with the ticket.
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
