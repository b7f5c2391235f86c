// Package trust implements the ledger of a machine. The ledger contains the client certificates
// that the machine has issued, the revocations that the machine knows, and the membership of the
// cluster.
//
// A certificate and all its renewals form a lineage (pki.LineageOf). The ID of the lineage is the
// serial number of its first certificate. The revocation of any certificate of a lineage revokes
// the whole lineage, because a thief may have renewed a stolen certificate. A machine can also
// revoke a certificate that its ledger does not contain. It recognizes the renewals of this
// certificate by a prefix of their serial numbers, which is computed from the ID of the lineage
// (pki.LineagePrefixOf). The revocation of a name makes every certificate with this name invalid
// until an operator restores the name.
//
// The package only makes decisions. It stores no files and issues no certificates; machined does
// both.
//
// The JSON tags are the tags of version 0.1.0, which reads the same ledger after a rollback
// (docs/decisions/0092-stored-formats.md). In the tags, "origin" is the lineage, "life" is the TTL,
// "count" is the generation, "needs" is the quorum, "planes" is the control plane, and "claims" are
// the ticket bindings.
package trust

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/orlop-os/orlop/pkg/pki"
)

// Ledger contains the certificates that a machine has issued, the revocations, and the membership
// of the cluster. The zero Ledger is empty and has no ID. The methods never change their receiver:
// a method that changes the ledger returns the changed copy.
type Ledger struct {
	// ID identifies the ledger: 32 random hexadecimal digits, which the machine chooses when it
	// writes its ledger for the first time. If the ledger is lost, the ledger that replaces it has
	// another ID.
	ID      string       `json:"id,omitempty"`
	Issued  Certificates `json:"issued,omitempty"` // oldest first, without tickets
	Revoked Revocations  `json:"revoked,omitempty"`
	// ControlPlanes maps the addresses of the other control-plane machines to the names that these
	// machines have reported. machined admits no worker with one of these names, even while the
	// control-plane machine with this name is off.
	ControlPlanes map[string]string `json:"planes,omitempty"`
	Membership                      // members, tickets and ticket bindings
	// Floor is a time that has certainly passed (package timesync). It is not stored; the caller
	// sets it in each ledger that it reads. The ledger drops no entry that expires after Floor,
	// even if the clock is later, because the answer of a time server can be wrong. If Floor is
	// zero, the ledger uses the clock alone.
	Floor time.Time `json:"-"`
}

// pruneTime returns the time by which the ledger decides whether to drop an entry: the earlier one
// of now and Floor, or now if Floor is zero.
func (l Ledger) pruneTime(now time.Time) time.Time {
	if !l.Floor.IsZero() && l.Floor.Before(now) {
		return l.Floor
	}
	return now
}

// WithID returns the ledger with the ID id. When the ID of a machine's ledger changes, its peers
// know that the ledger was replaced. WithID also converts the ledger of a version without ledger
// IDs, which stored unused tickets among the issued certificates: it moves these tickets to
// Tickets, with this machine as their only voter.
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
// has reported. controlPlanes are the present addresses of the control plane; the ledger drops the
// names of all other addresses. It fails if CheckHolder rejects the name.
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
// more than keepExpired ago, all certificates of the lineage except the last maxPerLineage, and the
// oldest certificates beyond maxIssued.
func (l Ledger) AddIssued(i Issued) Ledger {
	l.Issued = l.Issued.add(i, l.pruneTime(i.At))
	return l
}

// HasIssued reports whether the ledger contains the certificate with this serial number, or a
// certificate of its lineage. It also returns true for an unused ticket in the ledger, even if
// another control-plane machine has issued the ticket.
func (l Ledger) HasIssued(serial string) bool {
	_, ticket := l.ticket(serial)
	return ticket || l.Issued.lineageOf(serial) != "" || slices.ContainsFunc(l.Issued, func(i Issued) bool { return i.Lineage == serial })
}

// Revoke revokes a certificate or a name. It returns the new ledger and the recorded entry.
// r.Lineage can be the serial number of any certificate of the lineage. If the certificate is
// already revoked, Revoke returns the ledger unchanged, with the earlier entry. If the name is
// already revoked, Revoke increases the generation of its entry, because another machine may have
// restored the name since this machine last synced. Revoke fails if r is invalid or the list of
// revocations is full.
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
		r.Generation = following(l.Revoked[i].Generation)
	}
	list, ok := l.Revoked.set(r, l.pruneTime(r.At))
	if !ok {
		return l, r, fmt.Errorf("revocation refused: the list is full (%d revocations); to make space, restore a name that no valid certificate has", maxRevoked)
	}
	l.Revoked = list
	return l.normalize(), r, nil
}

// Restore returns the ledger with the name r.Name restored. It fails if the name is not revoked, or
// if its entry has the highest generation, so that no restoration can replace the entry.
func (l Ledger) Restore(r Revocation) (Ledger, error) {
	i := l.Revoked.find(r)
	if r.Name == "" || i < 0 || l.Revoked[i].Restored {
		return l, fmt.Errorf("name %.80q: cannot restore: it is not revoked", r.Name)
	}
	if l.Revoked[i].Generation == math.MaxUint64 {
		return l, fmt.Errorf("name %.80q: cannot restore: its revocation has the highest generation; use another name", r.Name)
	}
	r.Generation, r.Restored = following(l.Revoked[i].Generation), true
	// This call of set cannot fail, because r replaces an entry and the list does not grow.
	l.Revoked, _ = l.Revoked.set(r, l.pruneTime(r.At))
	return l, nil
}

// MergeRevocations merges the revocations of another machine into the ledger, and returns the
// entries that are new or changed. It skips invalid entries and merges the others, so an invalid
// entry cannot suppress a revocation. It stops when an entry does not fit into a full list. In both
// cases it returns an error, and next and added contain the merged entries.
func (l Ledger) MergeRevocations(received []Revocation, now time.Time) (next Ledger, added []Revocation, err error) {
	l.Revoked, added, err = l.Revoked.merge(received, l.pruneTime(now))
	return l.normalize(), added, err
}

// MergeMembership merges the membership of another control-plane machine into the ledger, and
// reports whether the ledger has changed. It leaves out long-expired tickets, old approvals, and
// the other machine's copies of this machine's own ticket bindings. If the membership is invalid or
// exceeds the limits of a cluster, MergeMembership merges none of it and returns an error.
func (l Ledger) MergeMembership(received Membership, s *Session, now time.Time) (next Ledger, changed bool, err error) {
	if err := received.check(); err != nil {
		return l, false, fmt.Errorf("members: cannot use received membership: %w", err)
	}
	received.Tickets = s.pruneTickets(received.Tickets, l.pruneTime(now))
	received.Approvals = slices.DeleteFunc(slices.Clone(received.Approvals), func(a Approval) bool { return oldApproval(a, l.pruneTime(now)) })
	// The ledger of this machine is the authority for the ticket bindings of this machine, so a
	// copy from a peer never replaces them.
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

// Prune returns the ledger without long-expired tickets and old approvals. The result is true if
// Prune has dropped at least one of them.
func (l Ledger) Prune(s *Session, now time.Time) (Ledger, bool) {
	now = l.pruneTime(now)
	old := func(a Approval) bool { return oldApproval(a, now) }
	if !slices.ContainsFunc(l.Tickets, func(t Ticket) bool { return longExpired(t, now) }) && !slices.ContainsFunc(l.Approvals, old) {
		return l, false
	}
	l.Tickets, l.Approvals = s.pruneTickets(l.Tickets, now), slices.DeleteFunc(slices.Clone(l.Approvals), old)
	return l.normalize(), true
}

// normalize returns the ledger without the ended items of its membership: removed members, tickets
// that are revoked or used, and the bindings of these tickets. It sorts the remaining items. The
// revocations retain the names of the removed machines.
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

// withMachineNames returns the ledger with Machine set in each revocation of a ticket that the
// membership still contains.
func (l Ledger) withMachineNames() Ledger {
	names := map[string]string{} // by the serial number of the ticket
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

// CheckName returns an error if n is not permitted as a name in a certificate that a machine
// issues. CheckHolder is the weaker check, for names in certificates of any CA.
func CheckName(n string) error {
	if !name.MatchString(n) {
		return fmt.Errorf("name %.80q: cannot use: expected 1 to 64 letters, digits and . _ @ -, with a letter or digit first", n)
	}
	return nil
}

// CheckHolder returns an error if n cannot be the name in any certificate, including the
// certificates of an operator's own CA.
func CheckHolder(n string) error {
	if n == "" || len(n) > 128 || !utf8.ValidString(n) || strings.ContainsFunc(n, unicode.IsControl) {
		return fmt.Errorf("name %.80q: cannot use: expected 1 to 128 bytes of text", n)
	}
	return nil
}

var serial = regexp.MustCompile(`^[0-9a-f]{1,40}$`)

// ParseSerial parses a hexadecimal serial number of at most 20 octets (RFC 5280). The text can have
// leading zeros, and colons between the octets. The result has neither, and its letters are
// lower-case.
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

// following returns the generation after g, or g itself if it is the highest generation. A return
// to 0 would lose against the entries of other machines. The highest generation can occur, because
// another machine can send any generation.
func following(g uint64) uint64 {
	if g == math.MaxUint64 {
		return g
	}
	return g + 1
}

// checkTimes returns an error for a time with a year outside 1 to 9999, which RFC 3339 cannot
// represent.
func checkTimes(times ...time.Time) error {
	for _, t := range times {
		if y := t.UTC().Year(); y < 1 || y > 9999 {
			return fmt.Errorf("the year %d", y)
		}
	}
	return nil
}

// maxBy is the maximum length of the subject of a caller (the fields By), in bytes. apid shortens a
// longer subject before it forwards the call.
const maxBy = 128
