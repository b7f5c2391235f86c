// Package trust implements the ledger of a machine: the client certificates that it has issued, the
// revocations that it knows, and the membership of the cluster.
//
// A certificate and all its renewals form a lineage (pki.LineageOf). Its ID is the serial number of
// the first certificate. The revocation of any certificate of a lineage revokes the whole lineage,
// because a thief may have renewed a stolen certificate. The ledger need not contain the revoked
// certificate: the serial number of a renewal begins with a prefix of its lineage
// (pki.LineagePrefixOf). A revoked name is rejected in every certificate until the name is
// restored.
//
// The package only makes decisions. It stores no files and issues no certificates.
//
// The JSON tags are those of version 0.1.0, which reads the same ledger after a rollback
// (docs/decisions/0092-stored-formats.md): origin is the lineage, life the TTL, count the
// generation, needs the quorum, planes the control plane and claims the ticket bindings.
package trust

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/orlop-os/orlop/pkg/pki"
)

// Ledger is the list of issued certificates and revocations, with the membership of the cluster.
// The zero Ledger is empty.
type Ledger struct {
	// ID identifies the ledger. It is random, and chosen at the first write. A ledger that replaces
	// a lost ledger has another ID.
	ID      string       `json:"id,omitempty"`
	Issued  Certificates `json:"issued,omitempty"` // oldest first, without tickets
	Revoked Revocations  `json:"revoked,omitempty"`
	// ControlPlanes maps the addresses of the other control-plane machines to the names that they
	// have reported. No worker can join under these names, even while the machines are off.
	ControlPlanes map[string]string `json:"planes,omitempty"`
	Membership                      // members, tickets and ticket bindings
	// Floor is a time that has certainly passed (package timesync). It is not stored. No entry is
	// dropped if it expires after Floor, regardless of the clock, because time servers prove
	// nothing. Zero: the ledger uses the clock alone.
	Floor time.Time `json:"-"`
}

// pruneTime returns the time for the decision to drop entries: the clock's time, or Floor if the
// clock is ahead of it.
func (l Ledger) pruneTime(now time.Time) time.Time {
	if !l.Floor.IsZero() && l.Floor.Before(now) {
		return l.Floor
	}
	return now
}

// WithID returns the ledger with the ID id. A peer recognizes by the ID whether the ledger was
// replaced. Versions without ledger IDs stored unused tickets among the issued certificates; WithID
// moves these to Tickets, with this machine as their only voter.
func (l Ledger) WithID(id string) Ledger {
	l.ID = id
	for _, i := range l.Issued {
		if i.Role == RoleJoin && !slices.ContainsFunc(l.Tickets, func(t Ticket) bool { return t.Serial == i.Serial }) {
			l.Tickets = append(slices.Clone(l.Tickets), Ticket{Serial: i.Serial, Name: i.Name, At: i.At, Expires: i.Expires, By: i.By, Voters: []string{id}, Quorum: 1})
		}
	}
	l.Issued = slices.DeleteFunc(slices.Clone(l.Issued), func(i Issued) bool { return i.Role == RoleJoin })
	return l.normalize()
}

// RecordControlPlaneName returns the ledger with the name that the control-plane machine at address
// has reported. It drops the names of addresses that are not in controlPlanes, the present
// addresses of the control plane.
func (l Ledger) RecordControlPlaneName(address, name string, controlPlanes []string) (Ledger, error) {
	if err := CheckHolder(name); err != nil {
		return l, err
	}
	l.ControlPlanes = maps.Clone(l.ControlPlanes)
	maps.DeleteFunc(l.ControlPlanes, func(a, _ string) bool { return !slices.Contains(controlPlanes, a) })
	if l.ControlPlanes == nil {
		l.ControlPlanes = map[string]string{}
	}
	l.ControlPlanes[address] = name
	return l, nil
}

// AddIssued returns the ledger with an additional certificate. It drops certificates that expired
// more than keepExpired ago, and all but the last maxPerLineage certificates of the lineage.
func (l Ledger) AddIssued(i Issued) Ledger {
	l.Issued = l.Issued.add(i, l.pruneTime(i.At))
	return l
}

// HasIssued reports whether the machine has issued the certificate, or the first certificate of its
// lineage.
func (l Ledger) HasIssued(serial string) bool {
	_, ticket := l.ticket(serial)
	return ticket || l.Issued.lineageOf(serial) != "" || slices.ContainsFunc(l.Issued, func(i Issued) bool { return i.Lineage == serial })
}

// Revoke returns the ledger with a revoked certificate (by its serial number) or name. It does not
// record a revoked certificate again. It does record a revoked name again, because another machine
// may have restored the name and this machine may not have synced yet.
func (l Ledger) Revoke(r Revocation) (Ledger, Revocation, error) {
	if lineage := l.Issued.lineageOf(r.Lineage); lineage != "" {
		r.Lineage = lineage
	}
	r.Generation, r.Restored = 1, false
	if err := r.check(); err != nil {
		return l, r, fmt.Errorf("revocation refused: %w", err)
	}
	if i := l.Revoked.find(r); i >= 0 {
		if old := l.Revoked[i]; !old.Restored {
			if r.Name == "" {
				return l, old, nil
			}
			r.At, r.By = old.At, old.By
		}
		r.Generation = l.Revoked[i].Generation + 1
	}
	list, ok := l.Revoked.set(r, l.pruneTime(r.At))
	if !ok {
		return l, r, fmt.Errorf("revocation refused: there are %d already; restore names without valid certificates", maxRevoked)
	}
	l.Revoked = list
	return l.normalize(), r, nil
}

// Restore returns the ledger with the revocation of a name undone.
func (l Ledger) Restore(r Revocation) (Ledger, error) {
	i := l.Revoked.find(r)
	if r.Name == "" || i < 0 || l.Revoked[i].Restored {
		return l, fmt.Errorf("name %.80q: cannot restore: it is not revoked", r.Name)
	}
	r.Generation, r.Restored = l.Revoked[i].Generation+1, true
	// r replaces an entry, so the list cannot overflow.
	l.Revoked, _ = l.Revoked.set(r, l.pruneTime(r.At))
	return l, nil
}

// MergeRevocations merges the revocations of another machine into the ledger, and returns the new
// entries. It skips entries that cannot be stored here or that no machine can create, and returns
// an error about them. It merges the other entries all the same, so that invalid entries cannot
// suppress a revocation.
func (l Ledger) MergeRevocations(received []Revocation, now time.Time) (next Ledger, added []Revocation, err error) {
	l.Revoked, added, err = l.Revoked.merge(received, l.pruneTime(now))
	return l.normalize(), added, err
}

// MergeMembership merges the membership of another control-plane machine into the ledger, and
// reports whether it changed the ledger. It accepts the whole membership or rejects it.
func (l Ledger) MergeMembership(received Membership, s *Session, now time.Time) (next Ledger, changed bool, err error) {
	if err := received.check(); err != nil {
		return l, false, fmt.Errorf("members: cannot use received membership: %w", err)
	}
	received.Tickets = s.pruneTickets(received.Tickets, l.pruneTime(now))
	received.Approvals = slices.DeleteFunc(slices.Clone(received.Approvals), func(a Approval) bool { return oldApproval(a, l.pruneTime(now)) })
	// No peer knows the votes of this machine better than the machine itself.
	received.Bindings = slices.DeleteFunc(slices.Clone(received.Bindings), func(c TicketBinding) bool {
		return c.Voter == l.ID && slices.ContainsFunc(l.Bindings, func(own TicketBinding) bool { return own.Voter == l.ID && own.Ticket == c.Ticket })
	})
	next = l
	next.Membership = l.Membership.Merge(received)
	next = next.normalize()
	if len(next.Approvals) > 2*maxApprovals {
		return l, false, fmt.Errorf("members: %d approvals by rules exceed the limit of a cluster (%d)", len(next.Approvals), 2*maxApprovals)
	}
	if len(next.Members) > maxMembers || len(next.Tickets) > maxTickets {
		return l, false, fmt.Errorf("members: %d machines and %d open tickets exceed the limits of a cluster (%d and %d); remove some (`orlopctl nodes remove`)", len(next.Members), len(next.Tickets), maxMembers, maxTickets)
	}
	return next, !next.Membership.same(l.Membership), nil
}

// Prune returns the ledger without long-expired tickets and old approvals, and reports whether
// there were any.
func (l Ledger) Prune(s *Session, now time.Time) (Ledger, bool) {
	now = l.pruneTime(now)
	old := func(a Approval) bool { return oldApproval(a, now) }
	if !slices.ContainsFunc(l.Tickets, func(t Ticket) bool { return longExpired(t, now) }) && !slices.ContainsFunc(l.Approvals, old) {
		return l, false
	}
	l.Tickets, l.Approvals = s.pruneTickets(l.Tickets, now), slices.DeleteFunc(slices.Clone(l.Approvals), old)
	return l.normalize(), true
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

var name = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$`)

// CheckName returns an error if the machine cannot issue a certificate for the name.
func CheckName(n string) error {
	if !name.MatchString(n) {
		return fmt.Errorf("name %.80q: cannot use: expected 1 to 64 letters, digits and . _ @ -, with a letter or digit first", n)
	}
	return nil
}

// CheckHolder returns an error if the text cannot be the name in a certificate of any issuer.
func CheckHolder(n string) error {
	if n == "" || len(n) > 128 || !utf8.ValidString(n) || strings.ContainsFunc(n, unicode.IsControl) {
		return fmt.Errorf("name %.80q: cannot use: expected 1 to 128 bytes of text", n)
	}
	return nil
}

var serial = regexp.MustCompile(`^[0-9a-f]{1,40}$`)

// ParseSerial parses a hexadecimal serial number. RFC 5280 allows 20 octets. Colons between the
// octets and leading zeros are optional.
func ParseSerial(text string) (string, error) {
	s := strings.TrimLeft(strings.ReplaceAll(strings.ToLower(text), ":", ""), "0")
	if !serial.MatchString(s) {
		return "", fmt.Errorf("serial %.80q: cannot use: expected the complete number in hexadecimal, as `orlopctl trust list` shows it", text)
	}
	return s, nil
}

var ledgerID = regexp.MustCompile(`^[0-9a-f]{32}$`)

// CheckID returns an error if id is not a valid Ledger.ID.
func CheckID(id string) error {
	if !ledgerID.MatchString(id) {
		return fmt.Errorf("ledger %.80q: expected 32 hexadecimal digits", id)
	}
	return nil
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

// maxBy is the maximum length of a subject in bytes. apid forwards no longer subjects.
const maxBy = 128
