package trust

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Majority returns the smallest number that is more than half of n.
func Majority(n int) int { return n/2 + 1 }

// AddTicket returns the ledger with an additional ticket. It fails if a member has the name of the
// ticket, if the ticket is invalid, or if the ledger has maxTickets tickets already.
func (l Ledger) AddTicket(ticket Ticket) (Ledger, error) {
	if l.HasMember(ticket.Name) {
		return l, fmt.Errorf("machine %s: cannot create ticket: a member has this name; remove it first (`orlopctl nodes remove %s`)", ticket.Name, ticket.Name)
	}
	if err := ticket.check(); err != nil {
		return l, err
	}
	if len(l.Tickets) >= maxTickets {
		return l, fmt.Errorf("machine %s: cannot create ticket: there are %d open tickets; revoke some (`orlopctl nodes remove`)", ticket.Name, len(l.Tickets))
	}
	l.Tickets = append(slices.Clone(l.Tickets), ticket)
	return l.normalize(), nil
}

// Vote decides whether this control-plane machine votes for the admission of the machine m. If it
// votes, Vote returns the changed ledger. Otherwise it returns the unchanged ledger, and the reason
// as the error. The caller stores the ledger before it reports the vote.
//
// If m presents a ticket, the ledger records a ticket binding: the first key that has presented the
// ticket to this machine. Vote returns an error for every other key. If m is a member, the ledger
// records the source address of its call. hasCertificate is true if m has authenticated with a
// certificate that was issued to its key earlier, and false if it has authenticated with the
// ticket. s contains the IDs of the ledgers that this machine has merged since its start.
func (l Ledger) Vote(m Member, hasCertificate bool, s *Session, now time.Time) (Ledger, error) {
	if l.Revoked.hasTicket(m.Ticket) {
		return l, errTicketRevoked
	}
	at := l.member(m.Ticket)
	if at >= 0 && (l.Members[at].Key != m.Key || l.Members[at].Name != m.Name) {
		return l, ticketUsedError(l.Members[at])
	}
	if err := l.checkConflicts(m, at >= 0, now); err != nil {
		return l, err
	}
	switch {
	case at >= 0:
		if l.Members[at].Address != m.Address {
			l.Members = slices.Clone(l.Members)
			l.Members[at].Address = m.Address
			// a merge takes the entry with the higher generation
			l.Members[at].Generation = following(l.Members[at].Generation)
		}
		return l.normalize(), nil
	case hasCertificate:
		// m was a member before, because it has a certificate. This ledger does not contain m,
		// because this ledger replaced a lost one.
		return l, nil
	}
	t, found := l.ticket(m.Ticket)
	switch {
	case !found || t.Name != m.Name:
		return l, errors.New("ticket: this machine does not know it; use the machine that issued it, or create another ticket (`orlopctl nodes add`)")
	case !now.Before(t.Expires):
		return l, fmt.Errorf("ticket: it expired at %s; create another one (`orlopctl nodes add`)", t.Expires.UTC().Format(time.RFC3339))
	}
	own := -1
	for i, c := range l.Bindings {
		if c.Ticket == m.Ticket && c.Key != m.Key {
			return l, l.tally(t).contestedError(m.Key)
		}
		if c.Ticket == m.Ticket && c.Voter == l.ID {
			own = i
		}
	}
	if own < 0 {
		if err := l.checkVoter(t, s); err != nil {
			return l, err
		}
		l.Bindings = append(slices.Clone(l.Bindings), TicketBinding{Ticket: m.Ticket, Voter: l.ID, Key: m.Key, Address: m.Address})
		return l.normalize(), nil
	}
	l.Bindings = slices.Clone(l.Bindings)
	l.Bindings[own].Address = m.Address
	return l, nil
}

// checkVoter returns an error if this machine may have voted on the ticket before and lost its
// binding. A second vote could bind the ticket to another key. There are three cases:
//
//   - This ledger replaces a lost ledger. It has a new ID, which is not in the voters of the
//     ticket.
//   - Since its start, this machine has dropped the ticket and its binding, because the ticket had
//     expired (s.droppedTickets).
//   - This ledger is an older copy, which was put back after a loss. It has the same ID as the lost
//     ledger, but lacks the bindings that were recorded after the copy.
//
// A machine cannot detect the third case. It therefore votes on a ticket only after it has synced
// with all other voters of the ticket since its start (s.synced). The sync returns a lost binding,
// because at least one other voter has stored it: a voter that requests the votes of other machines
// sends its own binding with the request, and a voter that votes on request receives the binding of
// the requester.
func (l Ledger) checkVoter(t Ticket, s *Session) error {
	if !slices.Contains(t.Voters, l.ID) || s.droppedTickets[t.Serial] {
		return errors.New("ticket: this machine is not a voter of the ticket, or no longer; try another control-plane machine, or create another ticket (`orlopctl nodes add`)")
	}
	for _, v := range t.Voters {
		if v != l.ID && !s.synced[v] {
			return errors.New("ticket: this machine has restarted since the ticket was issued, and has not synced with all voters of the ticket yet; try another control-plane machine, or create another ticket (`orlopctl nodes add`)")
		}
	}
	return nil
}

var errTicketRevoked = errors.New("ticket: it was revoked; create another one (`orlopctl nodes add`)")

func ticketUsedError(old Member) error {
	return fmt.Errorf("ticket: another machine has used it at %s; if you do not know that machine, remove it (`orlopctl nodes remove %s`) and create another ticket", old.Joined.UTC().Format(time.RFC3339), old.Name)
}

// checkConflicts returns an error if another machine holds the name or the address of m. The
// machine m joins the cluster or renews its certificates. If isMember is true, m is already a
// member and keeps its name, so only the address is checked.
func (l Ledger) checkConflicts(m Member, isMember bool, now time.Time) error {
	for _, o := range l.Members {
		switch {
		case o.Ticket == m.Ticket, o.Key == m.Key && o.Name == m.Name: // this entry is m itself
		case o.Address == m.Address:
			return fmt.Errorf("machine %s: cannot join: another member has the address %s", m.Name, m.Address)
		case o.Name == m.Name && !isMember:
			return fmt.Errorf("machine %s: cannot join: a member has this name; remove it first (`orlopctl nodes remove %s`)", m.Name, m.Name)
		}
	}
	// This machine has voted for the machines in its own bindings. Another control-plane machine
	// may be admitting such a machine now, so such a machine holds its name and its address, too.
	// It holds both until its ticket is long expired, because the admission may have begun before
	// the expiry. With a spent ticket it holds neither, because no key can reach the quorum of the
	// ticket any more.
	for _, c := range l.Bindings {
		t, _ := l.ticket(c.Ticket)
		if c.Voter != l.ID || c.Ticket == m.Ticket || c.Key == m.Key || longExpired(t, now) || l.tally(t).spent() {
			continue
		}
		switch {
		case c.Address == m.Address:
			return fmt.Errorf("machine %s: cannot join: a machine with a ticket for %s has the address %s; if that machine shall not join, revoke its ticket (`orlopctl nodes remove %s`)", m.Name, t.Name, m.Address, t.Name)
		case t.Name == m.Name && !isMember:
			return fmt.Errorf("machine %s: cannot join: another machine has presented another ticket for this name; revoke both (`orlopctl nodes remove %s`) and create a new ticket", m.Name, m.Name)
		}
	}
	return nil
}

// ErrNoQuorum is returned if the number of control-plane machines that have voted for a machine is
// lower than the quorum.
var ErrNoQuorum = errors.New("no quorum of control-plane machines")

// Admit returns the ledger with m as a member. The caller has called Vote for m on this ledger
// before.
//
// A machine that joins with a ticket is admitted if the ledger has a quorum of ticket bindings for
// its key; Admit then ignores votes and quorum. A member, or another machine with a certificate
// (hasCertificate, see Vote), is admitted if votes is at least quorum. votes is the number of
// control-plane machines that have voted for m, this machine included. Admit fails if the ticket of
// m is revoked, or if another machine holds the name or the address of m. The error is ErrNoQuorum
// if only votes are missing and a later attempt can succeed.
//
// m.Renewed is the time of the admission. Admit ignores m.Joined: a member keeps the time at which
// it joined, and a new member gets m.Renewed. A repeated request with the same key succeeds again,
// because the first answer may have been lost.
//
// Before the caller issues certificates for m, more than half of all ledgers must store the result.
// Otherwise another control-plane machine could admit a second machine with the name or the address
// of m.
func (l Ledger) Admit(m Member, hasCertificate bool, votes, quorum int) (Ledger, error) {
	if l.Revoked.hasTicket(m.Ticket) {
		return l, errTicketRevoked
	}
	at := l.member(m.Ticket)
	if at < 0 && !hasCertificate {
		t, found := l.ticket(m.Ticket)
		// Vote has found the ticket, so the ticket was revoked after the vote.
		if !found {
			return l, errTicketRevoked
		}
		v := l.tally(t)
		if len(v.byKey) > 1 && v.byKey[m.Key] < t.Quorum {
			return l, v.contestedError(m.Key)
		}
		votes, quorum = v.byKey[m.Key], t.Quorum
	}
	if votes < quorum {
		return l, fmt.Errorf("machine %s: cannot join: %w: votes: %d, quorum: %d", m.Name, ErrNoQuorum, votes, quorum)
	}
	if err := l.checkConflicts(m, at >= 0, m.Renewed); err != nil {
		return l, err
	}
	l.Members = slices.Clone(l.Members)
	m.Joined = m.Renewed
	if at >= 0 {
		old := l.Members[at]
		if old.Key != m.Key || old.Name != m.Name {
			return l, ticketUsedError(old)
		}
		m.Joined, m.Generation = old.Joined, max(m.Generation, following(old.Generation))
		l.Members[at] = m
	} else {
		m.Generation = max(m.Generation, 1)
		l.Members = append(l.Members, m)
	}
	return l.normalize(), nil
}

// AdmitWithVotes merges the ticket bindings of the other voters into the ledger and then calls
// Admit.
func (l Ledger) AdmitWithVotes(m Member, hasCertificate bool, bindings []TicketBinding, votes, quorum int, s *Session) (Ledger, error) {
	next, _, err := l.MergeMembership(Membership{Bindings: bindings}, s, m.Renewed)
	if err != nil {
		return l, err
	}
	return next.Admit(m, hasCertificate, votes, quorum)
}

// RemovedMachine is a machine that an operator has removed from the cluster. Ticket is the serial
// number of a revoked ticket of the machine, used or unused.
type RemovedMachine struct {
	Name, Ticket string
}

// RemovedSince returns the machines that were removed after the time since. It omits a machine if a
// member or an open ticket has its name now.
func (l Ledger) RemovedSince(since, now time.Time) []RemovedMachine {
	var out []RemovedMachine
	for _, r := range l.Revoked {
		if r.Machine != "" && r.At.After(since) && !l.NameInUse(r.Machine, now) {
			out = append(out, RemovedMachine{r.Machine, r.Lineage})
		}
	}
	return out
}

// Remove returns the ledger without the machine called name, and the serial numbers of the tickets
// that it has revoked. It revokes the ticket with which the machine joined and all unused tickets
// for the name. If the machine was removed before, Remove succeeds again with the same tickets,
// because the caller may have missed the first result. It fails if the ledger contains no member,
// ticket or revocation of the machine.
func (l Ledger) Remove(name string, at time.Time, by string) (Ledger, []string, error) {
	var tickets []string
	for _, m := range l.Members {
		if m.Name == name {
			tickets = append(tickets, m.Ticket)
		}
	}
	// An expired ticket is revoked too: an admission that began before its expiry may still be in
	// progress.
	for _, t := range l.Tickets {
		if t.Name == name {
			tickets = append(tickets, t.Serial)
		}
	}
	if len(tickets) == 0 { // the machine may have been removed before
		for _, r := range l.Revoked {
			if r.Machine == name && name != "" {
				tickets = append(tickets, r.Lineage)
			}
		}
	}
	if len(tickets) == 0 {
		return l, nil, fmt.Errorf("machine %.80q: cannot be removed: it is not a member, and there is no open ticket for it; `orlopctl nodes list` shows both", name)
	}
	for _, ticket := range tickets {
		var err error
		// normalize, which Revoke calls, adds the name of the machine to the entry.
		if l, _, err = l.Revoke(Revocation{Lineage: ticket, At: at, By: by}); err != nil {
			return l, nil, err
		}
	}
	return l.normalize(), tickets, nil
}
