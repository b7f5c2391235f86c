package trust

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// RoleJoin is the role of a join ticket in a ledger. A join ticket, short ticket, is the client
// certificate with which a machine joins the cluster.
const RoleJoin = "join"

const (
	// DefaultTicketTTL is the TTL of a ticket if the operator requests none, and MaxTicketTTL is
	// the longest TTL.
	DefaultTicketTTL = time.Hour
	MaxTicketTTL     = 7 * 24 * time.Hour
)

// TicketTTL returns the TTL of a ticket: the requested TTL, or DefaultTicketTTL if requested is
// zero. It returns an error if requested is shorter than a minute or longer than MaxTicketTTL.
func TicketTTL(requested time.Duration) (time.Duration, error) {
	switch {
	case requested == 0:
		return DefaultTicketTTL, nil
	case requested < time.Minute || requested > MaxTicketTTL:
		return 0, fmt.Errorf("TTL %s: cannot use: expected %s to %s", requested, time.Minute, MaxTicketTTL)
	}
	return requested, nil
}

// Ticket is an issued join ticket. It never changes.
type Ticket struct {
	Serial  string    `json:"serial"` // hexadecimal
	Name    string    `json:"name"`   // name of the machine that can join with it
	At      time.Time `json:"at"`     // time of its creation
	Expires time.Time `json:"expires"`
	By      string    `json:"by"` // subject of the caller that created it
	// Voters are the IDs of the ledgers (Ledger.ID) of the machines that vote on the ticket. A
	// machine can join if at least Quorum of these ledgers have recorded its key as the first key
	// that presented the ticket. Quorum is more than half of all control-plane machines, so at most
	// one key can join with a ticket. A ledger that replaces a lost ledger has another ID, and
	// therefore no vote.
	Voters []string `json:"voters"`
	Quorum int      `json:"needs"`
}

// check returns an error if the ticket is invalid. No ledger contains an invalid ticket.
func (t Ticket) check() error {
	if len(t.By) > maxBy {
		return fmt.Errorf("ticket %s: by %.80q", t.Serial, t.By)
	}
	// Two quorums of the voters must have a voter in common. Otherwise two keys could join with the
	// ticket.
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

// longExpired reports whether the ticket expired more than keepExpired before now.
func longExpired(t Ticket, now time.Time) bool { return now.Sub(t.Expires) > keepExpired }

// TicketBinding is the record of one voter about a ticket: the first machine key that presented the
// ticket to this voter. A voter never binds a ticket to a second key.
type TicketBinding struct {
	Ticket string `json:"ticket"`
	Voter  string `json:"voter"` // ID of the voter's ledger
	Key    string `json:"key"`   // fingerprint of the machine's key
	// Address is the source address of the last call of the machine with this key. Only the ledger
	// of the voter itself contains it.
	Address string `json:"address,omitempty"`
}

// tally is the count of the votes on a ticket. A vote is a binding by one of the voters of the
// ticket.
type tally struct {
	ticket  Ticket
	byKey   map[string]int // number of votes for each key
	missing int            // number of the ticket's voters without a binding in the membership
}

// tally counts the votes on the ticket t in this membership.
func (ms Membership) tally(t Ticket) tally {
	v := tally{ticket: t, byKey: map[string]int{}, missing: len(t.Voters)}
	for _, c := range ms.Bindings {
		if c.Ticket == t.Serial && slices.Contains(t.Voters, c.Voter) {
			v.byKey[c.Key]++
			v.missing--
		}
	}
	return v
}

// spent reports whether no key can reach the quorum of the ticket any more, even if it gets all
// missing votes.
func (v tally) spent() bool {
	most := 0
	for _, n := range v.byKey {
		most = max(most, n)
	}
	return most+v.missing < v.ticket.Quorum
}

// contestedError returns the error for the machine with this key. The caller calls it if machines
// with other keys have also presented the ticket.
func (v tally) contestedError(key string) error {
	t := v.ticket
	for k, n := range v.byKey {
		if k != key && n >= t.Quorum {
			return fmt.Errorf("ticket: another machine has used it; if you do not know that machine, remove it (`orlopctl nodes remove %s`) and create another ticket", t.Name)
		}
	}
	if v.spent() {
		return fmt.Errorf("ticket: several machines have presented it at once, so it is spent and none of them can join with it; if you do not know one of them, find out how its ticket leaked; then create another ticket (`orlopctl nodes add %s`)", t.Name)
	}
	if v.byKey[key]+v.missing < t.Quorum {
		return fmt.Errorf("ticket: another machine has presented it before; if you do not know that machine, revoke the ticket (`orlopctl nodes remove %s`) and create another one", t.Name)
	}
	return fmt.Errorf("ticket: another machine has also presented it, to another control-plane machine; if you do not know that machine, revoke the ticket (`orlopctl nodes remove %s`) and create another one", t.Name)
}

// Session records what a machine has done with its ledger since its start: which other ledgers it
// has merged, and which tickets it has dropped. It is not stored, because after a restart the
// ledger on the disk may be an older copy, for which the records would be wrong (checkVoter). The
// zero Session is the state after a start.
type Session struct {
	synced map[string]bool // IDs of the ledgers that this machine has merged since its start
	// serial numbers of the tickets that this machine has dropped or ignored as long expired
	droppedTickets map[string]bool
}

// MarkSynced records that this machine has merged the whole ledger with this ID and stored the
// result.
func (s *Session) MarkSynced(id string) {
	if s.synced == nil {
		s.synced = map[string]bool{}
	}
	s.synced[id] = true
}

func (s *Session) drop(ticket string) {
	if s.droppedTickets == nil {
		s.droppedTickets = map[string]bool{}
	}
	s.droppedTickets[ticket] = true
}

// pruneTickets returns the tickets without those for which longExpired is true, and records these
// in the session as dropped.
func (s *Session) pruneTickets(all []Ticket, now time.Time) []Ticket {
	return slices.DeleteFunc(slices.Clone(all), func(t Ticket) bool {
		if longExpired(t, now) {
			s.drop(t.Serial)
		}
		return longExpired(t, now)
	})
}
