package trust

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// RoleJoin is the role of a join ticket in the ledger.
const RoleJoin = "join"

const (
	// DefaultTicketTTL is the TTL of a ticket if the operator gives none. MaxTicketTTL is the upper
	// limit.
	DefaultTicketTTL = time.Hour
	MaxTicketTTL     = 7 * 24 * time.Hour
)

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
	Generation uint64 `json:"generation,omitempty"`
}

// TicketTTL returns the TTL of a ticket: asked, or the default if asked is zero.
func TicketTTL(asked time.Duration) (time.Duration, error) {
	switch {
	case asked == 0:
		return DefaultTicketTTL, nil
	case asked < time.Minute || asked > MaxTicketTTL:
		return 0, fmt.Errorf("TTL %s: cannot use: expected %s to %s", asked, time.Minute, MaxTicketTTL)
	}
	return asked, nil
}

// WithID returns the ledger with a new ID. A peer recognizes by the ID whether the ledger was
// replaced. Unused tickets from a version without ledger IDs get this machine as their only voter.
func (b Ledger) WithID(id string) Ledger {
	b.ID = id
	for _, i := range b.Issued {
		if i.Role == RoleJoin && !slices.ContainsFunc(b.Tickets, func(t Ticket) bool { return t.Serial == i.Serial }) {
			b.Tickets = append(slices.Clone(b.Tickets), Ticket{Serial: i.Serial, Name: i.Name, At: i.At, Expires: i.Expires, By: i.By, Voters: []string{id}, Quorum: 1})
		}
	}
	b.Issued = slices.DeleteFunc(slices.Clone(b.Issued), func(i Issued) bool { return i.Role == RoleJoin })
	return b.normalize()
}

// Majority returns how many of n control-plane machines are more than half.
func Majority(of int) int { return of/2 + 1 }

// AddTicket returns the ledger with an additional ticket. It rejects a ticket for the name of a
// member.
func (b Ledger) AddTicket(ticket Ticket) (Ledger, error) {
	if b.HasMember(ticket.Name) {
		return b, fmt.Errorf("machine %s: cannot create ticket: a member has this name; remove it first (`orlopctl nodes remove %s`)", ticket.Name, ticket.Name)
	}
	if err := ticket.check(); err != nil {
		return b, err
	}
	if len(b.Tickets) >= maxTickets {
		return b, fmt.Errorf("machine %s: cannot create ticket: there are %d open tickets; revoke some (`orlopctl nodes remove`)", ticket.Name, len(b.Tickets))
	}
	b.Tickets = append(slices.Clone(b.Tickets), ticket)
	return b.normalize(), nil
}

// RecordControlPlaneName returns the ledger with the name that the control-plane machine at address
// has reported. It drops the names of addresses that no longer belong to the control plane.
func (b Ledger) RecordControlPlaneName(address, name string, planes []string) (Ledger, error) {
	if err := CheckHolder(name); err != nil {
		return b, err
	}
	b.ControlPlanes = maps.Clone(b.ControlPlanes)
	maps.DeleteFunc(b.ControlPlanes, func(a, _ string) bool { return !slices.Contains(planes, a) })
	if b.ControlPlanes == nil {
		b.ControlPlanes = map[string]string{}
	}
	b.ControlPlanes[address] = name
	return b, nil
}

// HasKey reports whether a member has the key with this fingerprint.
func (b Ledger) HasKey(fingerprint string) bool {
	return slices.ContainsFunc(b.Members, func(m Member) bool { return m.Key == fingerprint })
}

// HasMember reports whether a member has this name.
func (b Ledger) HasMember(name string) bool {
	return slices.ContainsFunc(b.Members, func(m Member) bool { return m.Name == name })
}

// MemberAtAddress returns the member with a different name that called last from this address, or
// an empty string.
func (b Ledger) MemberAtAddress(name, address string) string {
	i := slices.IndexFunc(b.Members, func(m Member) bool { return m.Name != name && m.Address == address })
	if i < 0 {
		return ""
	}
	return b.Members[i].Name
}

// OpenTickets returns the tickets that have not expired.
func (b Ledger) OpenTickets(now time.Time) []Ticket {
	return slices.DeleteFunc(slices.Clone(b.Tickets), func(t Ticket) bool { return !now.Before(t.Expires) })
}

func (b Ledger) ticket(serial string) (Ticket, bool) {
	i := slices.IndexFunc(b.Tickets, func(t Ticket) bool { return t.Serial == serial })
	if i < 0 {
		return Ticket{}, false
	}
	return b.Tickets[i], true
}

func (b Ledger) revoked(serial string) bool {
	return slices.ContainsFunc(b.Revoked, func(r Revocation) bool { return r.Lineage == serial })
}

// MemberOfRevocation returns the member that a revocation would only revoke in part, or an empty
// string. The operator has to remove this member instead.
func (b Ledger) MemberOfRevocation(r Revocation) string {
	for _, m := range b.Members {
		if r.Name == m.Name || r.Lineage == m.Ticket {
			return m.Name
		}
	}
	return ""
}

// member returns the index of the member that joined with this ticket, or -1.
func (b Ledger) member(ticket string) int {
	return slices.IndexFunc(b.Members, func(m Member) bool { return m.Ticket == ticket })
}

// TicketUsed reports whether a machine has joined with this ticket.
func (b Ledger) TicketUsed(ticket string) bool { return b.member(ticket) >= 0 }

// Vote returns the ledger after this control-plane machine has voted for admitting m, or the reason
// why it votes no.
//
// The caller stores the returned ledger before it reports the vote. For a ticket, the ledger
// records the first key that presented the ticket; Vote returns an error for every other key. For a
// member, the ledger records the source address of the last call. known means that the machine
// presented a certificate for its key from an earlier issue, not the ticket.
func (b Ledger) Vote(m Member, known bool, s *Session, now time.Time) (Ledger, error) {
	if b.revoked(m.Ticket) {
		return b, errTicketRevoked
	}
	at := b.member(m.Ticket)
	if at >= 0 && (b.Members[at].Key != m.Key || b.Members[at].Name != m.Name) {
		return b, usedBy(b.Members[at])
	}
	if err := b.taken(m, at >= 0, now); err != nil {
		return b, err
	}
	switch {
	case at >= 0:
		if b.Members[at].Address != m.Address {
			b.Members = slices.Clone(b.Members)
			b.Members[at].Address = m.Address
			b.Members[at].Generation++
		}
		return b.normalize(), nil
	case known: // this ledger replaced the ledger that held the member
		return b, nil
	}
	t, found := b.ticket(m.Ticket)
	switch {
	case !found || t.Name != m.Name:
		return b, errors.New("ticket: this machine does not know it; use the machine that issued it, or create another ticket (`orlopctl nodes add`)")
	case !now.Before(t.Expires):
		return b, fmt.Errorf("ticket: it expired at %s; create another one (`orlopctl nodes add`)", t.Expires.UTC().Format(time.RFC3339))
	}
	own := -1
	for i, c := range b.Bindings {
		if c.Ticket == m.Ticket && c.Key != m.Key {
			return b, b.contested(t, m.Key)
		}
		if c.Ticket == m.Ticket && c.Voter == b.ID {
			own = i
		}
	}
	if own < 0 {
		if err := b.mayVote(t, s); err != nil {
			return b, err
		}
		b.Bindings = append(slices.Clone(b.Bindings), TicketBinding{Ticket: m.Ticket, Voter: b.ID, Key: m.Key, Address: m.Address})
		return b.normalize(), nil
	}
	b.Bindings = slices.Clone(b.Bindings)
	b.Bindings[own].Address = m.Address
	return b, nil
}

// mayVote returns nil if the first key that presents the ticket here is also the first key that
// this machine ever recorded for it. Otherwise it returns the reason why that is unknown.
//
// A ledger that replaces a lost ledger has a new ID, which the ticket does not list as a voter. An
// older copy of the ledger, put back after a loss, has the same ID. Therefore a machine first syncs
// with all other voters after it starts: the machine that requested the vote has recorded the key
// in its own ledger before, and reports it.
func (b Ledger) mayVote(t Ticket, s *Session) error {
	if !slices.Contains(t.Voters, b.ID) || s.dropped[t.Serial] {
		return errors.New("ticket: this machine is not a voter of the ticket, or no longer; try another control-plane machine, or create another ticket (`orlopctl nodes add`)")
	}
	for _, v := range t.Voters {
		if v != b.ID && !s.synced[v] {
			return errors.New("ticket: this machine has restarted since it was issued, and has not synced with all its voters yet; try another control-plane machine, or create another ticket (`orlopctl nodes add`)")
		}
	}
	return nil
}

var errTicketRevoked = errors.New("ticket: it was revoked; create another one (`orlopctl nodes add`)")

func usedBy(old Member) error {
	return fmt.Errorf("ticket: another machine has used it at %s; if you do not know that machine, remove it (`orlopctl nodes remove %s`) and create another ticket", old.Joined.UTC().Format(time.RFC3339), old.Name)
}

// taken returns an error if another machine holds the name or the address of a machine that joins.
func (b Ledger) taken(m Member, member bool, now time.Time) error {
	for _, o := range b.Members {
		switch {
		case o.Ticket == m.Ticket, o.Key == m.Key && o.Name == m.Name: // it is the same machine
		case o.Address == m.Address:
			return fmt.Errorf("machine %s: cannot join: another member has the address %s", m.Name, m.Address)
		case o.Name == m.Name && !member:
			return fmt.Errorf("machine %s: cannot join: a member has this name; remove it first (`orlopctl nodes remove %s`)", m.Name, m.Name)
		}
	}
	// A machine that got the vote of this machine may be admitted elsewhere at this moment, even if
	// its ticket expires meanwhile.
	for _, c := range b.Bindings {
		t, _ := b.ticket(c.Ticket)
		if c.Voter != b.ID || c.Ticket == m.Ticket || c.Key == m.Key || longExpired(t, now) || b.spent(t) {
			continue
		}
		switch {
		case c.Address == m.Address:
			return fmt.Errorf("machine %s: cannot join: a machine with a ticket for %s has the address %s; if that machine shall not join, revoke its ticket (`orlopctl nodes remove %s`)", m.Name, t.Name, m.Address, t.Name)
		case t.Name == m.Name && !member:
			return fmt.Errorf("machine %s: cannot join: another machine has presented another ticket for this name; revoke both (`orlopctl nodes remove %s`) and create a new ticket", m.Name, m.Name)
		}
	}
	return nil
}

// votes counts the votes of a ticket: by returns the number of voters for each key, and missing the
// number of voters without a known vote.
func (b Ledger) votes(t Ticket) (by map[string]int, missing int) {
	by, missing = map[string]int{}, len(t.Voters)
	for _, c := range b.Bindings {
		if c.Ticket == t.Serial && slices.Contains(t.Voters, c.Voter) {
			by[c.Key]++
			missing--
		}
	}
	return by, missing
}

// spent reports whether no key can reach the quorum of a ticket any more.
func (b Ledger) spent(t Ticket) bool {
	by, missing := b.votes(t)
	most := 0
	for _, n := range by {
		most = max(most, n)
	}
	return most+missing < t.Quorum
}

// contested returns the error for a key when another key has also presented the ticket.
func (b Ledger) contested(t Ticket, key string) error {
	by, missing := b.votes(t)
	for k, n := range by {
		if k != key && n >= t.Quorum {
			return fmt.Errorf("ticket: another machine has used it; if you do not know that machine, remove it (`orlopctl nodes remove %s`) and create another ticket", t.Name)
		}
	}
	if b.spent(t) {
		return fmt.Errorf("ticket: several machines have presented it at once, so it is spent and none of them can join with it; if you do not know one of them, find out how its ticket leaked; then create another ticket (`orlopctl nodes add %s`)", t.Name)
	}
	if by[key]+missing < t.Quorum {
		return fmt.Errorf("ticket: another machine has presented it before; if you do not know that machine, revoke the ticket (`orlopctl nodes remove %s`) and create another one", t.Name)
	}
	return fmt.Errorf("ticket: another machine has also presented it, to another control-plane machine; if you do not know that machine, revoke the ticket (`orlopctl nodes remove %s`) and create another one", t.Name)
}

// ErrNoQuorum is returned when fewer control-plane machines than the quorum have voted for a
// machine.
var ErrNoQuorum = errors.New("no quorum of control-plane machines")

// Admit returns the ledger with m as a member, after this machine has voted for it (Vote). A
// machine with a ticket needs a quorum of ticket bindings in the ledger for its key. A known member
// needs the votes of needs control-plane machines; stood counts them, this machine included. Admit
// ignores m.Joined. A machine that repeats the request with the same key gets the same answer,
// because the first answer may have been lost.
//
// More than half of all ledgers must store the result before the machine gets certificates.
// Otherwise another control-plane machine could admit a second machine with its name or address.
// The error is ErrNoQuorum if a retry can succeed.
func (b Ledger) Admit(m Member, known bool, stood, needs int) (Ledger, error) {
	if b.revoked(m.Ticket) {
		return b, errTicketRevoked
	}
	at := b.member(m.Ticket)
	if at < 0 && !known {
		t, found := b.ticket(m.Ticket)
		if !found {
			return b, errTicketRevoked
		}
		by, _ := b.votes(t)
		if len(by) > 1 && by[m.Key] < t.Quorum {
			return b, b.contested(t, m.Key)
		}
		stood, needs = by[m.Key], t.Quorum
	}
	if stood < needs {
		return b, fmt.Errorf("machine %s: cannot join: %w: votes: %d, quorum: %d", m.Name, ErrNoQuorum, stood, needs)
	}
	if err := b.taken(m, at >= 0, m.Renewed); err != nil {
		return b, err
	}
	b.Members = slices.Clone(b.Members)
	if m.Joined = m.Renewed; at >= 0 {
		old := b.Members[at]
		if old.Key != m.Key || old.Name != m.Name {
			return b, usedBy(old)
		}
		m.Joined, m.Generation = old.Joined, max(m.Generation, old.Generation+1)
		b.Members[at] = m
	} else {
		m.Generation = max(m.Generation, 1)
		b.Members = append(b.Members, m)
	}
	return b.normalize(), nil
}

// AdmitWithVotes calls Admit after it has merged the ticket bindings of the other voters.
func (b Ledger) AdmitWithVotes(m Member, known bool, said []TicketBinding, stood, needs int, s *Session) (Ledger, error) {
	next, _, err := b.MergeMembership(Membership{Bindings: said}, s, m.Renewed)
	if err != nil {
		return b, err
	}
	return next.Admit(m, known, stood, needs)
}

// RemovedMachine is a machine that was removed from the cluster.
type RemovedMachine struct {
	Name, Ticket string
}

// NameInUse reports whether a member or an open ticket has this name. A Node with this name then
// belongs to that machine.
func (b Ledger) NameInUse(name string, now time.Time) bool {
	return b.HasMember(name) || slices.ContainsFunc(b.OpenTickets(now), func(t Ticket) bool { return t.Name == name })
}

// RemovedSince returns the machines that were removed after a time, except machines with a name
// that is in use again.
func (b Ledger) RemovedSince(after, now time.Time) []RemovedMachine {
	var out []RemovedMachine
	for _, r := range b.Revoked {
		if r.Machine != "" && r.At.After(after) && !b.NameInUse(r.Machine, now) {
			out = append(out, RemovedMachine{r.Machine, r.Lineage})
		}
	}
	return out
}

// Remove returns the ledger without the machine name, and with all its tickets revoked, unused
// tickets included. A machine that was removed before can be removed again, because the caller may
// have missed the result of the first call.
func (b Ledger) Remove(name string, at time.Time, by string) (Ledger, []string, error) {
	var tickets []string
	for _, m := range b.Members {
		if m.Name == name {
			tickets = append(tickets, m.Ticket)
		}
	}
	// expired tickets too: a machine may be joining with such a ticket right now
	for _, t := range b.Tickets {
		if t.Name == name {
			tickets = append(tickets, t.Serial)
		}
	}
	if len(tickets) == 0 {
		for _, r := range b.Revoked {
			if r.Machine == name && name != "" {
				tickets = append(tickets, r.Lineage)
			}
		}
	}
	if len(tickets) == 0 {
		return b, nil, fmt.Errorf("machine %.80q: cannot be removed: it is not a member, and there is no open ticket for it; `orlopctl nodes list` shows both", name)
	}
	for _, ticket := range tickets {
		var err error
		if b, _, err = b.Revoke(Revocation{Lineage: ticket, At: at, By: by}); err != nil {
			return b, nil, err
		}
	}
	return b.normalize(), tickets, nil
}
