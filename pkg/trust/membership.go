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
	Members  []Member        `json:"members,omitempty"` // in the order of joining
	Tickets  []Ticket        `json:"tickets,omitempty"` // unused tickets, oldest first
	Bindings []TicketBinding `json:"claims,omitempty"`  // bindings of the unused tickets
	// Approvals are the approvals by rules, oldest first.
	Approvals []Approval `json:"approvals,omitempty"`
}

// Member is a worker that joined the cluster with a ticket. All certificates of the member contain
// the serial number of the ticket.
type Member struct {
	Name    string    `json:"name"`
	Ticket  string    `json:"ticket"`
	Key     string    `json:"key"`     // fingerprint of the machine's key
	Address string    `json:"address"` // source address of the last call
	Joined  time.Time `json:"joined"`
	Renewed time.Time `json:"renewed"` // time of the last issue of certificates
	Expires time.Time `json:"expires"` // expiry of these certificates
	// Generation counts the issues of certificates, and the calls from an address that differs from
	// the previous address.
	Generation uint64 `json:"count,omitempty"`
}

// Check returns an error if a ledger cannot contain the member.
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

// MemberAtAddress returns the member with a different name that called last from this address, or
// an empty string.
func (ms Membership) MemberAtAddress(name, address string) string {
	i := slices.IndexFunc(ms.Members, func(m Member) bool { return m.Name != name && m.Address == address })
	if i < 0 {
		return ""
	}
	return ms.Members[i].Name
}

// MemberOfRevocation returns the name of the member to which the name or ticket of r belongs, or an
// empty string. A member has further certificates that r would not revoke, so the operator has to
// remove the member instead.
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

// NameInUse reports whether a member or an open ticket has this name. A Node with this name then
// belongs to that machine.
func (ms Membership) NameInUse(name string, now time.Time) bool {
	return ms.HasMember(name) || slices.ContainsFunc(ms.OpenTickets(now), func(t Ticket) bool { return t.Name == name })
}

// OpenTickets returns the tickets that have not expired.
func (ms Membership) OpenTickets(now time.Time) []Ticket {
	return slices.DeleteFunc(slices.Clone(ms.Tickets), func(t Ticket) bool { return !now.Before(t.Expires) })
}

// ticket returns the unused ticket with this serial number, expired or not.
func (ms Membership) ticket(serial string) (Ticket, bool) {
	i := slices.IndexFunc(ms.Tickets, func(t Ticket) bool { return t.Serial == serial })
	if i < 0 {
		return Ticket{}, false
	}
	return ms.Tickets[i], true
}

// Public returns the membership without private fields, for replication to peers.
func (ms Membership) Public() Membership {
	out := Membership{Members: ms.Members, Tickets: ms.Tickets, Bindings: slices.Clone(ms.Bindings), Approvals: ms.Approvals}
	for i := range out.Bindings {
		out.Bindings[i].Address = ""
	}
	return out
}

// PublicForTicket returns the part of the public membership about one ticket and the machine that
// joined with it.
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
	text, _ := json.Marshal(ms) // cannot fail: only strings, numbers and times
	sum := sha256.Sum256(text)
	return sum[:]
}

// Merge returns the union of two memberships. For an item in both, it takes the later version.
func (ms Membership) Merge(o Membership) Membership {
	return Membership{
		Members:   union(ms.Members, o.Members, func(m Member) string { return m.Ticket }, laterMember, func(x, y Member) int { return x.Joined.Compare(y.Joined) }),
		Tickets:   union(ms.Tickets, o.Tickets, func(t Ticket) string { return t.Serial }, laterTicket, func(x, y Ticket) int { return x.At.Compare(y.At) }),
		Bindings:  union(ms.Bindings, o.Bindings, func(c TicketBinding) string { return c.Ticket + " " + c.Voter }, laterBinding, func(TicketBinding, TicketBinding) int { return 0 }),
		Approvals: union(ms.Approvals, o.Approvals, Approval.ID, laterApproval, func(x, y Approval) int { return x.At.Compare(y.At) }),
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
func (ms Membership) same(o Membership) bool {
	return slices.EqualFunc(ms.Members, o.Members, func(x, y Member) bool { return x.Ticket == y.Ticket && laterMember(x, y) == 0 }) &&
		slices.EqualFunc(ms.Tickets, o.Tickets, func(x, y Ticket) bool { return x.Serial == y.Serial && laterTicket(x, y) == 0 }) &&
		slices.Equal(ms.Bindings, o.Bindings) &&
		slices.EqualFunc(ms.Approvals, o.Approvals, func(x, y Approval) bool { return x.ID() == y.ID() && laterApproval(x, y) == 0 })
}

// check rejects a membership that no ledger can contain.
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
