package trust

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// RoleJoin is the role in the ledger of a join ticket, short ticket: the client certificate with
// which a machine joins.
const RoleJoin = "join"

const (
	// DefaultTicketTTL is the TTL of a ticket if the operator gives none. MaxTicketTTL is the upper
	// limit.
	DefaultTicketTTL = time.Hour
	MaxTicketTTL     = 7 * 24 * time.Hour
)

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
	Quorum int      `json:"needs"`
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

func longExpired(t Ticket, now time.Time) bool { return now.Sub(t.Expires) > keepExpired }

// TicketBinding is the record of one voter for a ticket: the first key that presented the ticket to
// this voter. The binding never changes to another key.
type TicketBinding struct {
	Ticket string `json:"ticket"`
	Voter  string `json:"voter"` // ID of the voter's ledger
	Key    string `json:"key"`   // fingerprint of the machine's key
	// Address is the source address of the machine's last call. Only the voter's own ledger has it.
	Address string `json:"address,omitempty"`
}

// tally counts the votes for a ticket, that is the bindings of the ticket's voters.
type tally struct {
	ticket  Ticket
	byKey   map[string]int // number of voters for each key
	missing int            // voters without a known binding
}

// tally counts the votes for a ticket.
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

// spent reports whether no key can reach the quorum of the ticket any more, because too many voters
// have recorded other keys.
func (v tally) spent() bool {
	most := 0
	for _, n := range v.byKey {
		most = max(most, n)
	}
	return most+v.missing < v.ticket.Quorum
}

// contestedError returns the error for a key when another key has also presented the ticket.
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

// Session is the state that a machine loses when it restarts: it shows whether the ledger on the
// disk may be an older copy. After a restart the machine must sync with its peers again. The zero
// Session is the state after a start.
type Session struct {
	synced map[string]bool // IDs of the ledgers that were merged
	// tickets that were dropped or ignored because they had expired by the local clock
	droppedTickets map[string]bool
}

// MarkSynced records that the ledger of a peer, by its ID, was merged and stored completely.
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
