package trust

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// RoleJoin is the role of a ticket in the book.
const RoleJoin = "join"

const (
	// DefaultTicketLife is how long a ticket can be used unless something else is asked for, and MaxTicketLife the most.
	DefaultTicketLife = time.Hour
	MaxTicketLife     = 7 * 24 * time.Hour
)

// Member is a machine that has come to the cluster by a ticket. The ticket's serial number stands in all certificates that it gets.
type Member struct {
	Name    string    `json:"name"`
	Ticket  string    `json:"ticket"`
	Key     string    `json:"key"`     // fingerprint of the machine's key
	Address string    `json:"address"` // from which it asked last
	Joined  time.Time `json:"joined"`
	Renewed time.Time `json:"renewed"` // when it got certificates last
	Expires time.Time `json:"expires"` // when they end
}

// TicketLife is how long a ticket can be used: what was asked for, or for zero the default.
func TicketLife(asked time.Duration) (time.Duration, error) {
	switch {
	case asked == 0:
		return DefaultTicketLife, nil
	case asked < time.Minute || asked > MaxTicketLife:
		return 0, fmt.Errorf("life %s: cannot use: expected %s to %s", asked, time.Minute, MaxTicketLife)
	}
	return asked, nil
}

// Invite is the book with a ticket more. A name that a machine of the cluster has is not given away a second time.
func (b Book) Invite(ticket Issued) (Book, error) {
	if b.has(ticket.Name) {
		return b, fmt.Errorf("machine %s: cannot be invited: there is one of this name in the cluster; take it out first (`orlopctl nodes remove %s`)", ticket.Name, ticket.Name)
	}
	return b.With(ticket), nil
}

func (b Book) has(name string) bool {
	return slices.ContainsFunc(b.Members, func(m Member) bool { return m.Name == name })
}

// Open are the tickets that can still be used.
func (b Book) Open(now time.Time) []Issued {
	var out []Issued
	for _, i := range b.Issued {
		used := slices.ContainsFunc(b.Members, func(m Member) bool { return m.Ticket == i.Serial })
		if i.Role == RoleJoin && !used && now.Before(i.Expires) && !b.revoked(i.Serial) {
			out = append(out, i)
		}
	}
	return out
}

func (b Book) revoked(serial string) bool {
	return slices.ContainsFunc(b.Revoked, func(r Revocation) bool { return r.Origin == serial })
}

// MemberBy is the name of the machine that a revocation would take only a part of; empty if there is none.
func (b Book) MemberBy(r Revocation) string {
	for _, m := range b.Members {
		if r.Name == m.Name || r.Origin == m.Ticket {
			return m.Name
		}
	}
	return ""
}

// Admit is the book in which a machine has got certificates: by a ticket that nobody else has used, or again. m.Joined does not count.
// Whoever asks again with the same key gets the same answer, because the first one may have been lost; another key never gets one.
// known: it has shown a certificate that it got before, and not the ticket.
func (b Book) Admit(m Member, known bool) (Book, error) {
	if b.revoked(m.Ticket) {
		return b, errors.New("ticket: it was taken back; ask for another one")
	}
	b.Members = slices.Clone(b.Members)
	at := slices.IndexFunc(b.Members, func(old Member) bool { return old.Ticket == m.Ticket })
	if at >= 0 {
		if old := b.Members[at]; old.Key != m.Key || old.Name != m.Name {
			return b, fmt.Errorf("ticket: another machine has used it at %s; if that was none of yours, remove it (`orlopctl nodes remove %s`) and ask for another ticket", old.Joined.UTC().Format(time.RFC3339), old.Name)
		}
	}
	if slices.ContainsFunc(b.Members, func(o Member) bool { return o.Address == m.Address && o.Ticket != m.Ticket }) {
		return b, fmt.Errorf("machine %s: cannot join: another machine of the cluster has the address %s", m.Name, m.Address)
	}
	if at >= 0 {
		m.Joined = b.Members[at].Joined
		b.Members[at] = m
		return b, nil
	}
	ticket := slices.IndexFunc(b.Issued, func(i Issued) bool { return i.Serial == m.Ticket && i.Role == RoleJoin && i.Name == m.Name })
	switch {
	case known && !b.has(m.Name): // the book is another one than that which it stood in
	case ticket < 0:
		return b, errors.New("ticket: this machine has not issued it; ask the one that has (Machine.spec.join.from)")
	case !m.Renewed.Before(b.Issued[ticket].Expires):
		return b, fmt.Errorf("ticket: it ended at %s; ask for another one", b.Issued[ticket].Expires.UTC().Format(time.RFC3339))
	case b.has(m.Name):
		return b, fmt.Errorf("machine %s: cannot join: another one of this name is in the cluster; take it out first (`orlopctl nodes remove %s`)", m.Name, m.Name)
	}
	m.Joined = m.Renewed
	b.Members = append(b.Members, m)
	return b, nil
}

// Remove is the book without a machine, and with all its tickets revoked, the open ones too.
func (b Book) Remove(name string, at time.Time, by string) (Book, []string, error) {
	var tickets []string
	for _, m := range b.Members {
		if m.Name == name {
			tickets = append(tickets, m.Ticket)
		}
	}
	for _, open := range b.Open(at) {
		if open.Name == name {
			tickets = append(tickets, open.Serial)
		}
	}
	if len(tickets) == 0 {
		return b, nil, fmt.Errorf("machine %.80q: cannot be removed: it has not come by a ticket of this machine, and there is no open ticket for it; `orlopctl nodes list` shows them", name)
	}
	for _, ticket := range tickets {
		var err error
		if b, _, err = b.Revoke(Revocation{Origin: ticket, At: at, By: by}); err != nil {
			return b, nil, err
		}
	}
	b.Members = slices.DeleteFunc(slices.Clone(b.Members), func(m Member) bool { return m.Name == name })
	return b, tickets, nil
}
