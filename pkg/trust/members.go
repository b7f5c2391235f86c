package trust

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// RoleJoin is the role of a ticket in the book.
const RoleJoin = "join"

const (
	// DefaultTicketTTL is how long a ticket can be used unless something else is asked for, and
	// MaxTicketTTL the most.
	DefaultTicketTTL = time.Hour
	MaxTicketTTL     = 7 * 24 * time.Hour
)

// Member is a machine that has come to the cluster by a ticket. The ticket's serial number stands
// in all certificates that it gets.
type Member struct {
	Name    string    `json:"name"`
	Ticket  string    `json:"ticket"`
	Key     string    `json:"key"`     // fingerprint of the machine's key
	Address string    `json:"address"` // from which it asked last
	Joined  time.Time `json:"joined"`
	Renewed time.Time `json:"renewed"` // when it got certificates last
	Expires time.Time `json:"expires"` // when they end
	// Generation is how often it got certificates, or asked for some from another address than before.
	Generation uint64 `json:"count,omitempty"`
}

// TicketTTL is how long a ticket can be used: what was asked for, or for zero the default.
func TicketTTL(asked time.Duration) (time.Duration, error) {
	switch {
	case asked == 0:
		return DefaultTicketTTL, nil
	case asked < time.Minute || asked > MaxTicketTTL:
		return 0, fmt.Errorf("life %s: cannot use: expected %s to %s", asked, time.Minute, MaxTicketTTL)
	}
	return asked, nil
}

// WithID is the book with a name of its own, by which others know whether it is still the same. Open
// tickets that a version without such names has issued are good on this machine.
func (b Ledger) WithID(id string) Ledger {
	b.ID = id
	for _, i := range b.Issued {
		if i.Role == RoleJoin && !slices.ContainsFunc(b.Tickets, func(t Ticket) bool { return t.Serial == i.Serial }) {
			b.Tickets = append(slices.Clone(b.Tickets), Ticket{Serial: i.Serial, Name: i.Name, At: i.At, Expires: i.Expires, By: i.By, Voters: []string{id}, Quorum: 1})
		}
	}
	b.Issued = slices.DeleteFunc(slices.Clone(b.Issued), func(i Issued) bool { return i.Role == RoleJoin })
	return b.settle()
}

// Majority is how many of so many control-plane machines are more than half.
func Majority(of int) int { return of/2 + 1 }

// AddTicket is the book with a ticket more. A name that a machine of the cluster has is not given away
// a second time.
func (b Ledger) AddTicket(ticket Ticket) (Ledger, error) {
	if b.HasMember(ticket.Name) {
		return b, fmt.Errorf("machine %s: cannot be invited: there is one of this name in the cluster; take it out first (`orlopctl nodes remove %s`)", ticket.Name, ticket.Name)
	}
	if err := ticket.check(); err != nil {
		return b, err
	}
	if len(b.Tickets) >= maxTickets {
		return b, fmt.Errorf("machine %s: cannot be invited: there are %d open tickets; take some back (`orlopctl nodes remove`)", ticket.Name, len(b.Tickets))
	}
	b.Tickets = append(slices.Clone(b.Tickets), ticket)
	return b.settle(), nil
}

// RecordControlPlaneName is the book in which the control-plane machine at an address has said its name. Those of
// addresses that are none of the control plane's any more it forgets.
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

// HasKey tells whether a member has a key, by its fingerprint.
func (b Ledger) HasKey(fingerprint string) bool {
	return slices.ContainsFunc(b.Members, func(m Member) bool { return m.Key == fingerprint })
}

// HasMember tells whether a member has a name.
func (b Ledger) HasMember(name string) bool {
	return slices.ContainsFunc(b.Members, func(m Member) bool { return m.Name == name })
}

// MemberAtAddress is the member of another name that asked from an address last; empty for none.
func (b Ledger) MemberAtAddress(name, address string) string {
	i := slices.IndexFunc(b.Members, func(m Member) bool { return m.Name != name && m.Address == address })
	if i < 0 {
		return ""
	}
	return b.Members[i].Name
}

// OpenTickets are the tickets that can still be used.
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

// MemberOfRevocation is the name of the machine that a revocation would take only a part of; empty if there
// is none.
func (b Ledger) MemberOfRevocation(r Revocation) string {
	for _, m := range b.Members {
		if r.Name == m.Name || r.Lineage == m.Ticket {
			return m.Name
		}
	}
	return ""
}

// member is where the machine that came by a ticket stands in the book; -1: nowhere.
func (b Ledger) member(ticket string) int {
	return slices.IndexFunc(b.Members, func(m Member) bool { return m.Ticket == ticket })
}

// TicketUsed tells whether a machine has come by a ticket already.
func (b Ledger) TicketUsed(ticket string) bool { return b.member(ticket) >= 0 }

// Vote is the book of a control-plane machine that has nothing against a machine, or why it has.
// The book has to last before anybody is told so. Of a ticket it notes the key that showed it
// first, and stands for no other key; of a member, from where it asked last. known: it has shown a
// certificate for its key, that it got before, and not the ticket.
func (b Ledger) Vote(m Member, known bool, s *Session, now time.Time) (Ledger, error) {
	if b.revoked(m.Ticket) {
		return b, errTakenBack
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
		return b.settle(), nil
	case known: // the book is another one than that which it stood in
		return b, nil
	}
	t, found := b.ticket(m.Ticket)
	switch {
	case !found || t.Name != m.Name:
		return b, errors.New("ticket: this machine does not know it; ask the one that has issued it, or for another one (`orlopctl nodes add`)")
	case !now.Before(t.Expires):
		return b, fmt.Errorf("ticket: it ended at %s; ask for another one", t.Expires.UTC().Format(time.RFC3339))
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
		return b.settle(), nil
	}
	b.Bindings = slices.Clone(b.Bindings)
	b.Bindings[own].Address = m.Address
	return b, nil
}

// mayVote is nil if the first key that is shown here is the first that this machine has ever noted,
// or why that is not known. A book that was lost has another name than the one that the ticket
// names. An older one that was put back has the same; so a machine that has started hears from the
// other voters first: whoever had it note a key has noted that key himself before, and says so.
func (b Ledger) mayVote(t Ticket, s *Session) error {
	if !slices.Contains(t.Voters, b.ID) || s.forgot[t.Serial] {
		return errors.New("ticket: this machine is not one of those that vouch for who shows it, or not any more; another control-plane machine may do, or ask for another ticket (`orlopctl nodes add`)")
	}
	for _, v := range t.Voters {
		if v != b.ID && !s.heard[v] {
			return errors.New("ticket: this machine has started since it was issued, and has not heard from all that know it yet; another control-plane machine may do, or ask for another ticket (`orlopctl nodes add`)")
		}
	}
	return nil
}

var errTakenBack = errors.New("ticket: it was taken back; ask for another one")

func usedBy(old Member) error {
	return fmt.Errorf("ticket: another machine has used it at %s; if that was none of yours, remove it (`orlopctl nodes remove %s`) and ask for another ticket", old.Joined.UTC().Format(time.RFC3339), old.Name)
}

// taken says who else has the address, or the name, of a machine that wants to be let in.
func (b Ledger) taken(m Member, member bool, now time.Time) error {
	for _, o := range b.Members {
		switch {
		case o.Ticket == m.Ticket, o.Key == m.Key && o.Name == m.Name: // it is the same machine
		case o.Address == m.Address:
			return fmt.Errorf("machine %s: cannot join: another machine of the cluster has the address %s", m.Name, m.Address)
		case o.Name == m.Name && !member:
			return fmt.Errorf("machine %s: cannot join: another one of this name is in the cluster; take it out first (`orlopctl nodes remove %s`)", m.Name, m.Name)
		}
	}
	// A machine that this one has stood for may be let in elsewhere at this moment, also when its
	// ticket ends meanwhile.
	for _, c := range b.Bindings {
		t, _ := b.ticket(c.Ticket)
		if c.Voter != b.ID || c.Ticket == m.Ticket || c.Key == m.Key || longOver(t, now) || b.spent(t) {
			continue
		}
		switch {
		case c.Address == m.Address:
			return fmt.Errorf("machine %s: cannot join: a machine that shows a ticket for %s has the address %s; if it is to join no more, take its ticket back (`orlopctl nodes remove %s`)", m.Name, t.Name, m.Address, t.Name)
		case t.Name == m.Name && !member:
			return fmt.Errorf("machine %s: cannot join: another machine has shown another ticket for this name; take both back (`orlopctl nodes remove %s`) and ask for one more", m.Name, m.Name)
		}
	}
	return nil
}

// votes are how many voters have noted each key that has shown a ticket, and how many of them are
// not known to have noted any.
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

// spent tells whether no key can come by a ticket any more.
func (b Ledger) spent(t Ticket) bool {
	by, missing := b.votes(t)
	most := 0
	for _, n := range by {
		most = max(most, n)
	}
	return most+missing < t.Quorum
}

// contested says what becomes of a ticket that another key than this one has shown too.
func (b Ledger) contested(t Ticket, key string) error {
	by, missing := b.votes(t)
	for k, n := range by {
		if k != key && n >= t.Quorum {
			return fmt.Errorf("ticket: another machine has used it; if that was none of yours, remove it (`orlopctl nodes remove %s`) and ask for another ticket", t.Name)
		}
	}
	if b.spent(t) {
		return fmt.Errorf("ticket: several machines have shown it at once, so it is spent, and none of them comes by it; if one was none of yours, find out who has read the configuration; then ask for another ticket (`orlopctl nodes add %s`)", t.Name)
	}
	if by[key]+missing < t.Quorum {
		return fmt.Errorf("ticket: another machine has shown it before; if that was none of yours, take the ticket back (`orlopctl nodes remove %s`) and ask for another one", t.Name)
	}
	return fmt.Errorf("ticket: another machine has shown it too, to another control-plane machine; if that was none of yours, take the ticket back (`orlopctl nodes remove %s`) and ask for another one", t.Name)
}

// ErrNoQuorum says that not enough control-plane machines have said yet that they stand for a
// machine.
var ErrNoQuorum = errors.New("not enough control-plane machines answer")

// Admit is the book in which a machine has got certificates. This machine stands for it (Stand). By
// a ticket it comes if the claims in the book are enough; a member, if stood control-plane machines
// have nothing against it, this one counted, and needs have to. m.Joined does not count. Whoever
// asks again with the same key gets the same answer, because the first one may have been lost.
//
// More than half of all books have to hold it before the machine gets anything: its name and
// address could be given away elsewhere otherwise. The error is ErrNoQuorum where asking again can
// help.
func (b Ledger) Admit(m Member, known bool, stood, needs int) (Ledger, error) {
	if b.revoked(m.Ticket) {
		return b, errTakenBack
	}
	at := b.member(m.Ticket)
	if at < 0 && !known {
		t, found := b.ticket(m.Ticket)
		if !found {
			return b, errTakenBack
		}
		by, _ := b.votes(t)
		if len(by) > 1 && by[m.Key] < t.Quorum {
			return b, b.contested(t, m.Key)
		}
		stood, needs = by[m.Key], t.Quorum
	}
	if stood < needs {
		return b, fmt.Errorf("machine %s: cannot join: %w: %d of them vouches for it, and %d have to", m.Name, ErrNoQuorum, stood, needs)
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
	return b.settle(), nil
}

// AdmitWithVotes is Admit after others have said what they know of the ticket.
func (b Ledger) AdmitWithVotes(m Member, known bool, said []TicketBinding, stood, needs int, s *Session) (Ledger, error) {
	next, _, err := b.MergeMembership(Membership{Bindings: said}, s, m.Renewed)
	if err != nil {
		return b, err
	}
	return next.Admit(m, known, stood, needs)
}

// RemovedSince is a machine that was taken out of the cluster.
type RemovedMachine struct {
	Name, Ticket string
}

// NameInUse tells whether a member or an open ticket has a name: what goes by it is that machine's.
func (b Ledger) NameInUse(name string, now time.Time) bool {
	return b.HasMember(name) || slices.ContainsFunc(b.OpenTickets(now), func(t Ticket) bool { return t.Name == name })
}

// RemovedSince are the machines that were taken out after a time, but those whose name is somebody's again.
func (b Ledger) RemovedSince(after, now time.Time) []RemovedMachine {
	var out []RemovedMachine
	for _, r := range b.Revoked {
		if r.Machine != "" && r.At.After(after) && !b.NameInUse(r.Machine, now) {
			out = append(out, RemovedMachine{r.Machine, r.Lineage})
		}
	}
	return out
}

// Remove is the book without a machine, and with all its tickets revoked, the open ones too. One
// that was removed before is removed again: whoever asked for it may not have seen it come to its
// end.
func (b Ledger) Remove(name string, at time.Time, by string) (Ledger, []string, error) {
	var tickets []string
	for _, m := range b.Members {
		if m.Name == name {
			tickets = append(tickets, m.Ticket)
		}
	}
	// those that have ended, too: somebody may be about to come by one
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
		return b, nil, fmt.Errorf("machine %.80q: cannot be removed: it has not come by a ticket, and there is no open ticket for it; `orlopctl nodes list` shows them", name)
	}
	for _, ticket := range tickets {
		var err error
		if b, _, err = b.Revoke(Revocation{Lineage: ticket, At: at, By: by}); err != nil {
			return b, nil, err
		}
	}
	return b.settle(), tickets, nil
}
