package trust

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Majority returns how many of n control-plane machines are more than half.
func Majority(n int) int { return n/2 + 1 }

// AddTicket returns the ledger with an additional ticket. It rejects a ticket for the name of a
// member.
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

// Vote returns the ledger after this control-plane machine has voted for admitting m, or the reason
// why it votes no.
//
// The caller stores the returned ledger before it reports the vote. For a ticket, the ledger
// records the first key that presented the ticket to this machine; the record is a TicketBinding,
// short binding. Vote returns an error for every other key. For a member, the ledger records the
// source address of the last call. hasCertificate reports that the machine authenticated with a
// certificate that was issued to its key earlier, not with the ticket. s shows which ledgers this
// machine has merged since its start.
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
			l.Members[at].Generation++ // a merge takes the entry with the higher generation
		}
		return l.normalize(), nil
	case hasCertificate:
		// This ledger replaced a lost ledger; the certificate proves that m was a member.
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

// checkVoter returns an error if this machine may have bound the ticket to a key and lost the
// binding. There are three cases:
//
//   - The ledger replaces a lost ledger. Then it has a new ID, which the ticket does not list as a
//     voter.
//   - This machine has dropped the ticket and its binding since its start, because the ticket had
//     expired (s.droppedTickets).
//   - The ledger is an older copy, put back after a loss. Then it has the same ID, but lacks the
//     bindings that were recorded after the copy. Therefore this machine votes only after it has
//     synced with all other voters of the ticket since its start (s.synced). The sync returns a
//     lost binding, because another voter has it in each case: either that voter requested the vote
//     of this machine, after it had bound the ticket itself; or this machine requested the votes,
//     and its requests contained the binding.
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

// checkConflicts returns an error if another machine holds the name or the address of m, which
// joins or renews. isMember reports that m is already a member: it keeps its name, so only its
// address is checked.
func (l Ledger) checkConflicts(m Member, isMember bool, now time.Time) error {
	for _, o := range l.Members {
		switch {
		case o.Ticket == m.Ticket, o.Key == m.Key && o.Name == m.Name: // it is the same machine
		case o.Address == m.Address:
			return fmt.Errorf("machine %s: cannot join: another member has the address %s", m.Name, m.Address)
		case o.Name == m.Name && !isMember:
			return fmt.Errorf("machine %s: cannot join: a member has this name; remove it first (`orlopctl nodes remove %s`)", m.Name, m.Name)
		}
	}
	// This machine has voted for the machines in its own bindings. Another control-plane machine
	// may admit them at this moment, so they hold their names and addresses too. They hold them
	// until long after the expiry of the ticket, because the admission may have begun before. A
	// ticket is spent if no key can get a quorum any more: then it admits no machine.
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

// ErrNoQuorum is returned when fewer control-plane machines than the quorum have voted for a
// machine.
var ErrNoQuorum = errors.New("no quorum of control-plane machines")

// Admit returns the ledger with m as a member, after this machine has voted for it (Vote). A
// machine that joins with a ticket needs a quorum of ticket bindings for its key in the ledger; the
// parameters votes and quorum do not apply to it. For a member, or for another machine with a
// certificate (hasCertificate, see Vote), votes is the number of control-plane machines that voted
// for it, this machine included, and quorum is the required number. m.Renewed is the time of the
// admission. Admit ignores m.Joined: a member retains the time at which it joined, and for a new
// member Joined is m.Renewed. A machine that repeats the request with the same key gets the same
// answer, because the first answer may have been lost.
//
// More than half of all ledgers must store the result before the machine gets certificates.
// Otherwise another control-plane machine could admit a second machine with its name or address.
// The error is ErrNoQuorum if a retry can succeed.
func (l Ledger) Admit(m Member, hasCertificate bool, votes, quorum int) (Ledger, error) {
	if l.Revoked.hasTicket(m.Ticket) {
		return l, errTicketRevoked
	}
	at := l.member(m.Ticket)
	if at < 0 && !hasCertificate {
		t, found := l.ticket(m.Ticket)
		// Vote found the ticket, so it was revoked since.
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
		m.Joined, m.Generation = old.Joined, max(m.Generation, old.Generation+1)
		l.Members[at] = m
	} else {
		m.Generation = max(m.Generation, 1)
		l.Members = append(l.Members, m)
	}
	return l.normalize(), nil
}

// AdmitWithVotes calls Admit after it has merged the ticket bindings of the other voters.
func (l Ledger) AdmitWithVotes(m Member, hasCertificate bool, bindings []TicketBinding, votes, quorum int, s *Session) (Ledger, error) {
	next, _, err := l.MergeMembership(Membership{Bindings: bindings}, s, m.Renewed)
	if err != nil {
		return l, err
	}
	return next.Admit(m, hasCertificate, votes, quorum)
}

// RemovedMachine is a machine that was removed from the cluster. Ticket is the serial number of the
// ticket with which it joined or could have joined.
type RemovedMachine struct {
	Name, Ticket string
}

// RemovedSince returns the machines that were removed after the time since, except machines with a
// name that is in use again. A revocation of a machine has the serial number of its ticket in the
// field Lineage.
func (l Ledger) RemovedSince(since, now time.Time) []RemovedMachine {
	var out []RemovedMachine
	for _, r := range l.Revoked {
		if r.Machine != "" && r.At.After(since) && !l.NameInUse(r.Machine, now) {
			out = append(out, RemovedMachine{r.Machine, r.Lineage})
		}
	}
	return out
}

// Remove removes the machine called name: it returns the ledger with all tickets of the machine
// revoked, unused tickets included, and the serial numbers of these tickets. A machine that was
// removed before can be removed again, because the caller may have missed the result of the first
// call.
func (l Ledger) Remove(name string, at time.Time, by string) (Ledger, []string, error) {
	var tickets []string
	for _, m := range l.Members {
		if m.Name == name {
			tickets = append(tickets, m.Ticket)
		}
	}
	// expired tickets too: a machine may be joining at this moment with a ticket that has just
	// expired
	for _, t := range l.Tickets {
		if t.Name == name {
			tickets = append(tickets, t.Serial)
		}
	}
	if len(tickets) == 0 { // removed before
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
		// Revoke adds the name of the machine.
		if l, _, err = l.Revoke(Revocation{Lineage: ticket, At: at, By: by}); err != nil {
			return l, nil, err
		}
	}
	return l.normalize(), tickets, nil
}
