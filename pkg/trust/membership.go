package trust

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"time"
)

const (
	// The limits of a membership. A membership within them fits into one message of 4 MiB.
	maxMembers = 5000
	maxTickets = 1000
	maxVoters  = 16
)

// Membership is the state about members that the control-plane machines of a cluster replicate.
// Merges in any order, and repeated merges, have the same result. The membership in a ledger
// contains no removed members and no revoked tickets (Ledger.normalize), because the revocations in
// the ledger record the removals.
type Membership struct {
	Members  []Member        `json:"members,omitempty"` // in the order in which they joined
	Tickets  []Ticket        `json:"tickets,omitempty"` // unused tickets, oldest first
	Bindings []TicketBinding `json:"claims,omitempty"`  // bindings of the unused tickets
	// Approvals are the approvals by rules, oldest first.
	Approvals []Approval `json:"approvals,omitempty"`
}

// Member is a worker that joined the cluster with a ticket. All certificates of the member contain
// the serial number of the ticket.
type Member struct {
	Name    string    `json:"name"`
	Ticket  string    `json:"ticket"`  // serial number of its ticket
	Key     string    `json:"key"`     // fingerprint of the machine's key
	Address string    `json:"address"` // source address of the last call
	Joined  time.Time `json:"joined"`
	Renewed time.Time `json:"renewed"` // time of the last issue of certificates
	Expires time.Time `json:"expires"` // expiry of these certificates
	// Generation increases when the member gets certificates, and when its address changes. Of two
	// versions of the member, a merge takes the one with the higher generation.
	Generation uint64 `json:"count,omitempty"`
}

// Check returns an error if the member is invalid. No ledger contains an invalid member.
func (m Member) Check() error {
	_, err := netip.ParseAddr(m.Address)
	return errors.Join(err, CheckHolder(m.Name), checkSerial(m.Ticket), checkKey(m.Key), checkTimes(m.Joined, m.Renewed, m.Expires))
}

// HasKey reports whether a member has the key with this fingerprint.
func (ms Membership) HasKey(fingerprint string) bool {
	return slices.ContainsFunc(ms.Members, func(m Member) bool { return m.Key == fingerprint })
}

// HasMember reports whether a member has this name.
func (ms Membership) HasMember(name string) bool {
	return slices.ContainsFunc(ms.Members, func(m Member) bool { return m.Name == name })
}

// MemberAtAddress returns the name of the member whose last call came from this address. It ignores
// the member called name. The result is empty if there is no such member.
func (ms Membership) MemberAtAddress(name, address string) string {
	i := slices.IndexFunc(ms.Members, func(m Member) bool { return m.Name != name && m.Address == address })
	if i < 0 {
		return ""
	}
	return ms.Members[i].Name
}

// MemberOfRevocation returns the name of the member that r revokes by its name or its ticket, or an
// empty string if r revokes no member. Such a member has to be removed (Ledger.Remove) instead: it
// can have more certificates, with other names, which r would not revoke.
func (ms Membership) MemberOfRevocation(r Revocation) string {
	for _, m := range ms.Members {
		if r.Name == m.Name || r.Lineage == m.Ticket {
			return m.Name
		}
	}
	return ""
}

// member returns the index of the member that joined with this ticket, or -1.
func (ms Membership) member(ticket string) int {
	return slices.IndexFunc(ms.Members, func(m Member) bool { return m.Ticket == ticket })
}

// TicketUsed reports whether a machine has joined with this ticket.
func (ms Membership) TicketUsed(ticket string) bool { return ms.member(ticket) >= 0 }

// NameInUse reports whether a member or an open ticket has this name. If so, the Node with this
// name belongs to this member, or to the machine with this ticket.
func (ms Membership) NameInUse(name string, now time.Time) bool {
	return ms.HasMember(name) || slices.ContainsFunc(ms.OpenTickets(now), func(t Ticket) bool { return t.Name == name })
}

// OpenTickets returns the unused tickets that have not expired at the time now.
func (ms Membership) OpenTickets(now time.Time) []Ticket {
	return slices.DeleteFunc(slices.Clone(ms.Tickets), func(t Ticket) bool { return !now.Before(t.Expires) })
}

// ticket returns the unused ticket with this serial number, even if it has expired. The result is
// false if there is none.
func (ms Membership) ticket(serial string) (Ticket, bool) {
	i := slices.IndexFunc(ms.Tickets, func(t Ticket) bool { return t.Serial == serial })
	if i < 0 {
		return Ticket{}, false
	}
	return ms.Tickets[i], true
}

// Public returns the membership as peers receive it: without the addresses in the ticket bindings.
func (ms Membership) Public() Membership {
	out := Membership{Members: ms.Members, Tickets: ms.Tickets, Bindings: slices.Clone(ms.Bindings), Approvals: ms.Approvals}
	for i := range out.Bindings {
		out.Bindings[i].Address = ""
	}
	return out
}

// PublicForTicket returns the part of Public that concerns one ticket: the ticket, its bindings,
// and the member that joined with it.
func (ms Membership) PublicForTicket(ticket string) Membership {
	all := ms.Public()
	return Membership{
		Members:  slices.DeleteFunc(slices.Clone(all.Members), func(m Member) bool { return m.Ticket != ticket }),
		Tickets:  slices.DeleteFunc(slices.Clone(all.Tickets), func(t Ticket) bool { return t.Serial != ticket }),
		Bindings: slices.DeleteFunc(all.Bindings, func(c TicketBinding) bool { return c.Ticket != ticket }),
	}
}

// Digest returns a hash that is equal for equal memberships.
func (ms Membership) Digest() []byte {
	text, _ := json.Marshal(ms) // cannot fail: only strings, numbers and valid times
	sum := sha256.Sum256(text)
	return sum[:]
}

// Merge returns the union of two memberships. If both contain different versions of an item, the
// result has the later version, as laterMember, laterTicket, laterBinding and laterApproval define
// it.
func (ms Membership) Merge(o Membership) Membership {
	return Membership{
		Members:   union(ms.Members, o.Members, func(m Member) string { return m.Ticket }, laterMember, func(x, y Member) int { return x.Joined.Compare(y.Joined) }),
		Tickets:   union(ms.Tickets, o.Tickets, func(t Ticket) string { return t.Serial }, laterTicket, func(x, y Ticket) int { return x.At.Compare(y.At) }),
		Bindings:  union(ms.Bindings, o.Bindings, func(c TicketBinding) string { return c.Ticket + " " + c.Voter }, laterBinding, func(TicketBinding, TicketBinding) int { return 0 }),
		Approvals: union(ms.Approvals, o.Approvals, Approval.ID, laterApproval, func(x, y Approval) int { return x.At.Compare(y.At) }),
	}
}

// union returns the items of both lists, sorted by order. name returns the key of an item. Of the
// items with the same key, union returns only the greatest, as the function later compares them.
func union[T any](a, b []T, name func(T) string, later, order func(x, y T) int) []T {
	all := slices.Concat(a, b)
	slices.SortFunc(all, func(x, y T) int { return cmp.Or(cmp.Compare(name(x), name(y)), later(y, x)) })
	all = slices.CompactFunc(all, func(x, y T) bool { return name(x) == name(y) })
	slices.SortStableFunc(all, order)
	return all
}

// laterMember compares two versions of a member for union. The version with the higher generation
// is greater, so the result does not depend on the clocks of the machines. The other comparisons
// decide only between versions with the same generation, so that every machine takes the same
// version.
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

// same reports whether two memberships are equal. Both must have the order that Merge produces.
func (ms Membership) same(o Membership) bool {
	return slices.EqualFunc(ms.Members, o.Members, func(x, y Member) bool { return x.Ticket == y.Ticket && laterMember(x, y) == 0 }) &&
		slices.EqualFunc(ms.Tickets, o.Tickets, func(x, y Ticket) bool { return x.Serial == y.Serial && laterTicket(x, y) == 0 }) &&
		slices.Equal(ms.Bindings, o.Bindings) &&
		slices.EqualFunc(ms.Approvals, o.Approvals, func(x, y Approval) bool { return x.ID() == y.ID() && laterApproval(x, y) == 0 })
}

// check returns an error if the membership is too long or contains an item that no ledger can
// contain.
func (ms Membership) check() error {
	if len(ms.Members) > maxMembers || len(ms.Tickets) > maxTickets || len(ms.Bindings) > maxTickets*maxVoters || len(ms.Approvals) > 2*maxApprovals {
		return errors.New("it is too long")
	}
	var problems []error
	for _, m := range ms.Members {
		problems = append(problems, m.Check())
	}
	for _, t := range ms.Tickets {
		problems = append(problems, t.check())
	}
	for _, a := range ms.Approvals {
		problems = append(problems, a.check())
	}
	for _, c := range ms.Bindings {
		problems = append(problems, checkSerial(c.Ticket), checkKey(c.Key), CheckID(c.Voter))
		if c.Address != "" {
			problems = append(problems, errors.New("a ticket binding has an address"))
		}
	}
	return errors.Join(problems...)
}
