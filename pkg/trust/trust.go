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
package trust

import (
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/orlop-os/orlop/pkg/pki"
)

const (
	// DefaultTTL is the TTL of an issued certificate if the caller gives none.
	DefaultTTL = 24 * time.Hour
	// MaxTTL is the upper limit of the TTL. An operator issues longer certificates with a private
	// CA (Machine.spec.trust.operatorCAs).
	MaxTTL = 30 * 24 * time.Hour
	// keepExpired is how long an expired certificate stays in the ledger.
	keepExpired = 7 * 24 * time.Hour
	// maxIssued is the number of certificates in the ledger. The ledger drops the oldest entries;
	// their certificates stay valid, and can be revoked by serial number.
	maxIssued = 2000
	// maxPerLineage is the number of certificates of one lineage in the ledger. It prevents a
	// client with endless renewals from displacing the certificates of other clients.
	maxPerLineage = 8
	// maxRevoked bounds the revocations, because each call is checked against all of them. A full
	// list drops the oldest ticket that was revoked more than keepTicket ago, or else a restored
	// name.
	maxRevoked = 10000
	// keepTicket is the minimum time for which a full list retains the revocation of a ticket. The
	// certificates of the ticket had 90 days when it was revoked (memberLife in machined), and
	// other issued certificates have MaxTTL. Certificates of an operator's own CA have no ticket
	// and can be valid for years.
	keepTicket = 120 * 24 * time.Hour
)

// Issued is a certificate that the machine has issued.
type Issued struct {
	Serial string `json:"serial"` // hexadecimal
	// serial number of the first certificate of the lineage; equal to Serial without a renewal
	Lineage string        `json:"lineage"`
	Name    string        `json:"name"` // common name
	Role    string        `json:"role"` // "reader"
	At      time.Time     `json:"at"`
	Expires time.Time     `json:"expires"`
	TTL     time.Duration `json:"ttl"` // the requested TTL in nanoseconds
	By      string        `json:"by"`  // subject of the caller that requested it
}

// Revocation is the ledger entry for a revoked lineage or name. Exactly one of Lineage and Name is
// set.
type Revocation struct {
	Lineage string `json:"lineage,omitempty"` // lineage ID: serial of its first certificate
	Name    string `json:"name,omitempty"`    // common name in certificates
	// Machine is the name of the machine to which the ticket Lineage belongs. With it the node
	// garbage collection deletes the Node even if no membership contains the machine any more. It
	// is empty for other certificates, and where the machine is unknown.
	Machine string    `json:"machine,omitempty"`
	At      time.Time `json:"at"`
	By      string    `json:"by"` // subject of the caller that revoked it
	// Generation counts revocations and restorations. When machines sync, the entry with the
	// greater generation wins, regardless of the clocks.
	Generation uint64 `json:"generation,omitempty"`
	// The name is valid again. The entry stays, so that a machine that was off does not bring the
	// revocation back.
	Restored bool `json:"restored,omitempty"`
}

// supersedes reports whether r replaces o, where two machines have these entries for the same
// lineage or name. Every machine chooses the same entry: the higher generation, then the revocation
// over the restoration, then the earlier revocation.
func (r Revocation) supersedes(o Revocation) bool {
	switch {
	case r.Generation != o.Generation:
		return r.Generation > o.Generation
	case r.Restored != o.Restored:
		return o.Restored
	case !r.At.Equal(o.At):
		return r.At.Before(o.At)
	}
	return r.By < o.By
}

// String returns "name alice" or "certificate 12ab…".
func (r Revocation) String() string {
	if r.Name != "" {
		return "name " + r.Name
	}
	return "certificate " + r.Lineage
}

// label returns the same text as String with quoted and shortened values, for unchecked input.
func (r Revocation) label() string {
	if r.Name != "" {
		return fmt.Sprintf("name %.80q", r.Name)
	}
	return fmt.Sprintf("certificate %.80q", r.Lineage)
}

// Ledger is the list of issued certificates and revocations, with the membership of the cluster.
// The zero Ledger is empty.
type Ledger struct {
	// ID identifies the ledger. It is random, and chosen at the first write. A ledger that replaces
	// a lost ledger has another ID.
	ID      string       `json:"id,omitempty"`
	Issued  []Issued     `json:"issued,omitempty"` // oldest first, without tickets
	Revoked []Revocation `json:"revoked,omitempty"`
	// ControlPlanes maps the addresses of the other control-plane machines to the names that they
	// have reported. No worker can join under these names, even while the machines are off.
	ControlPlanes map[string]string `json:"controlPlanes,omitempty"`
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

// TTL returns the TTL of a certificate: asked, or if asked is zero, the default or most, the
// shorter of the two.
func TTL(asked, most time.Duration) (time.Duration, error) {
	switch {
	case asked == 0:
		return min(DefaultTTL, most), nil
	case asked < time.Minute || asked > most:
		return 0, fmt.Errorf("TTL %s: cannot use: expected %s to %s; an operator's own CA can issue longer certificates", asked, time.Minute, most)
	}
	return asked, nil
}

// MaxRenewal returns the longest TTL of a renewal of the certificate with this serial number: the
// TTL of that certificate, or DefaultTTL if the ledger does not contain it.
func (l Ledger) MaxRenewal(serial string) time.Duration {
	for _, i := range l.Issued {
		if i.Serial == serial {
			return i.TTL
		}
	}
	return DefaultTTL
}

// AddIssued returns the ledger with an additional certificate. It drops certificates that expired
// more than keepExpired ago, and all but the last maxPerLineage certificates of the lineage.
func (l Ledger) AddIssued(i Issued) Ledger {
	now := l.pruneTime(i.At)
	kept := slices.DeleteFunc(slices.Clone(l.Issued), func(old Issued) bool { return now.Sub(old.Expires) > keepExpired })
	kept = append(kept, i)
	count := 0
	for n, c := range slices.Backward(kept) {
		if c.Lineage == i.Lineage {
			if count++; count > maxPerLineage {
				kept = slices.Delete(kept, n, n+1)
			}
		}
	}
	l.Issued = kept[max(0, len(kept)-maxIssued):]
	return l
}

// HasIssued reports whether the machine has issued the certificate, or the first certificate of its
// lineage.
func (l Ledger) HasIssued(serial string) bool {
	_, ticket := l.ticket(serial)
	return ticket || l.lineageOf(serial) != "" || slices.ContainsFunc(l.Issued, func(i Issued) bool { return i.Lineage == serial })
}

// Revoke returns the ledger with a revoked certificate (by its serial number) or name. It does not
// record a revoked certificate again. It does record a revoked name again, because another machine
// may have restored the name and this machine may not have synced yet.
func (l Ledger) Revoke(r Revocation) (Ledger, Revocation, error) {
	if lineage := l.lineageOf(r.Lineage); lineage != "" {
		r.Lineage = lineage
	}
	r.Generation, r.Restored = 1, false
	if err := r.check(); err != nil {
		return l, r, fmt.Errorf("revocation refused: %w", err)
	}
	if i := l.find(r); i >= 0 {
		if old := l.Revoked[i]; !old.Restored {
			if r.Name == "" {
				return l, old, nil
			}
			r.At, r.By = old.At, old.By
		}
		r.Generation = l.Revoked[i].Generation + 1
	}
	next, ok := l.with(r, r.At)
	if !ok {
		return l, r, fmt.Errorf("revocation refused: there are %d already; restore names without valid certificates", maxRevoked)
	}
	return next.normalize(), r, nil
}

// lineageOf returns the lineage ID of the certificate with this serial number, or an empty string
// if the ledger does not know it. The ledger contains only the newest certificates of a lineage
// with many renewals.
func (l Ledger) lineageOf(serial string) string {
	if serial == "" {
		return ""
	}
	for _, i := range l.Issued {
		if i.Serial == serial {
			return i.Lineage
		}
	}
	prefix := pki.LineagePrefixOf(serial)
	if prefix == "" {
		return ""
	}
	for _, i := range l.Issued {
		if pki.LineagePrefix(i.Lineage) == prefix {
			return i.Lineage
		}
	}
	return ""
}

// SameLineage reports whether a revoked serial number belongs to the lineage with ID lineage.
func SameLineage(serial, lineage string) bool {
	return serial != "" && lineage != "" && (serial == lineage || pki.LineagePrefixOf(serial) == pki.LineagePrefix(lineage))
}

// Restore returns the ledger with the revocation of a name undone.
func (l Ledger) Restore(r Revocation) (Ledger, error) {
	i := l.find(r)
	if r.Name == "" || i < 0 || l.Revoked[i].Restored {
		return l, fmt.Errorf("name %.80q: cannot restore: it is not revoked", r.Name)
	}
	r.Generation, r.Restored = l.Revoked[i].Generation+1, true
	next, _ := l.with(r, r.At) // it replaces an entry, so the list cannot overflow
	return next, nil
}

// MergeRevocations merges the revocations of another machine into the ledger, and returns the new
// entries. It skips entries that cannot be stored here or that no machine can create, and returns
// an error about them. It merges the other entries all the same, so that invalid entries cannot
// suppress a revocation.
func (l Ledger) MergeRevocations(received []Revocation, now time.Time) (next Ledger, added []Revocation, err error) {
	next, now = l, l.pruneTime(now)
	refused := 0
	// cloned once, because the list can be as long as maxRevoked
	next.Revoked = slices.Clone(l.Revoked)
	for _, r := range received {
		if wrong := r.check(); wrong != nil {
			refused++
			err = cmp.Or(err, wrong)
			continue
		}
		i := next.find(r)
		// it would displace another entry
		if i < 0 && (r.Restored || r.expired(now)) && len(next.Revoked) >= maxRevoked {
			continue
		}
		if i >= 0 {
			old := next.Revoked[i]
			// the sender may not know the machine's name
			machine, later := max(old.Machine, r.Machine), r.supersedes(old)
			if !later && machine == old.Machine {
				continue
			}
			if !later {
				r = old
			}
			r.Machine = machine
		}
		list, ok := place(next.Revoked, i, r, now)
		if !ok {
			return next.normalize(), added, errors.Join(fmt.Errorf("revocations: there are %d already; restore names without valid certificates", maxRevoked), skippedError(refused, err))
		}
		next.Revoked, added = list, append(added, r)
	}
	return next.normalize(), added, skippedError(refused, err)
}

// skippedError returns an error with the number of skipped entries and the first reason, or nil if
// none was skipped.
func skippedError(refused int, first error) error {
	if refused == 0 {
		return nil
	}
	return fmt.Errorf("revocations: cannot use %d of the received entries: %w", refused, first)
}

// check rejects a revocation that no ledger can contain.
func (r Revocation) check() error {
	var wrong error
	switch {
	case (r.Lineage == "") == (r.Name == ""):
		wrong = errors.New("expected either a certificate or a name")
	case r.Lineage != "" && r.Restored:
		wrong = errors.New("a certificate cannot be restored")
	case r.Machine != "" && r.Lineage == "":
		wrong = errors.New("only a ticket can have a machine")
	case len(r.By) > maxBy || !utf8.ValidString(r.By) || strings.ContainsFunc(r.By, unicode.IsControl):
		wrong = fmt.Errorf("done by %.80q: expected at most %d bytes of text", r.By, maxBy)
	}
	if r.Name != "" {
		wrong = errors.Join(wrong, CheckHolder(r.Name))
	}
	if r.Lineage != "" {
		wrong = errors.Join(wrong, checkSerial(r.Lineage))
	}
	if r.Machine != "" {
		wrong = errors.Join(wrong, CheckHolder(r.Machine))
	}
	if wrong = errors.Join(wrong, checkTimes(r.At)); wrong != nil {
		return fmt.Errorf("%s: %w", r.label(), wrong)
	}
	return nil
}

// maxBy is the maximum length of a subject in bytes. apid forwards no longer subjects.
const maxBy = 128

// find returns the index of the entry for the same lineage or name as r, or -1.
func (l Ledger) find(r Revocation) int {
	return slices.IndexFunc(l.Revoked, func(o Revocation) bool { return o.Lineage == r.Lineage && o.Name == r.Name })
}

// expired reports whether all certificates of the revocation have certainly expired: it revokes a
// ticket, and is older than keepTicket.
func (r Revocation) expired(now time.Time) bool { return r.Machine != "" && now.Sub(r.At) > keepTicket }

// with returns the ledger with r in place of the entry for the same lineage or name.
func (l Ledger) with(r Revocation, now time.Time) (Ledger, bool) {
	list, ok := place(slices.Clone(l.Revoked), l.find(r), r, l.pruneTime(now))
	if ok {
		l.Revoked = list
	}
	return l, ok
}

// place sets list[i] to r, or appends r if i is negative. It changes list in place. It returns
// false, and changes nothing, if the list is full.
//
// A full list first drops the oldest ticket without valid certificates. It does no harm if a peer
// reports this ticket again. Otherwise the list drops a restored name: a machine that was off since
// the restoration would bring the revocation back, which is the safe side.
func place(list []Revocation, i int, r Revocation, now time.Time) ([]Revocation, bool) {
	if i >= 0 {
		list[i] = r
		return list, true
	}
	if len(list) >= maxRevoked {
		oldest := -1
		for n, o := range list {
			if o.expired(now) && (oldest < 0 || cmp.Or(o.At.Compare(list[oldest].At), cmp.Compare(o.Lineage, list[oldest].Lineage)) < 0) {
				oldest = n
			}
		}
		if oldest < 0 {
			oldest = slices.IndexFunc(list, func(o Revocation) bool { return o.Restored })
		}
		if oldest < 0 {
			return list, false
		}
		list = slices.Delete(list, oldest, oldest+1)
	}
	return append(list, r), true
}

// ActiveRevocations returns the revocations that are not restored.
func (l Ledger) ActiveRevocations() []Revocation {
	return slices.DeleteFunc(slices.Clone(l.Revoked), func(r Revocation) bool { return r.Restored })
}

// Digest returns a hash that is equal on machines with equal revocations.
func (l Ledger) Digest() []byte {
	list := slices.SortedFunc(slices.Values(l.Revoked), func(a, o Revocation) int {
		return cmp.Or(cmp.Compare(a.Name, o.Name), cmp.Compare(a.Lineage, o.Lineage))
	})
	sum := sha256.New()
	for _, r := range list {
		// a hash accepts every write
		_, _ = fmt.Fprintf(sum, "%q %q %d %q %d %t\n", r.Name, r.Lineage, r.At.UnixNano(), r.By, r.Generation, r.Restored)
		if r.Machine != "" {
			_, _ = fmt.Fprintf(sum, "%q\n", r.Machine)
		}
	}
	return sum.Sum(nil)
}

// RevokedPrefix begins each rejection of a revoked certificate.
const RevokedPrefix = "your certificate was revoked"

// ErrRevocationsLost is returned for a certificate of a member on a machine that has lost its
// revocations. The certificate may not be revoked at all.
var ErrRevocationsLost = errors.New("this machine cannot read its revocations, so it rejects the certificates of all members; `orlopctl trust revoke --new-list` starts a new list")

// AnyTicket revokes all tickets on a machine that no longer knows which of them are revoked. No
// ledger contains it.
const AnyTicket = "any ticket"

// RevokedSet lists the revocations of client certificates that Kubernetes would otherwise accept
// until they expire. machined writes it, and package orchestrator/revocation reads it.
type RevokedSet struct {
	Revoked []Revocation `json:"revoked"`
	// TrustedRoots are the fingerprints (pki.Fingerprint) of the operator CAs. A certificate of a
	// lineage that began with another CA is rejected.
	TrustedRoots []string `json:"roots"`
}

// ErrUntrustedRoot is returned for a certificate of a lineage that began with a former operator CA.
var ErrUntrustedRoot = errors.New("the lineage of this certificate began with a CA that is no longer an operator CA")

// Check returns an error if the certificate is revoked or its root is untrusted.
func (r RevokedSet) Check(cert *x509.Certificate) error {
	if err := CheckRevoked(r.Revoked, cert); err != nil {
		return err
	}
	if _, root := pki.LineageOf(cert); root != "" && !slices.Contains(r.TrustedRoots, root) {
		return ErrUntrustedRoot
	}
	return nil
}

// CheckRevoked returns an error if the certificate is revoked, and ErrRevocationsLost if the
// revocations of tickets are unknown.
func CheckRevoked(revoked []Revocation, cert *x509.Certificate) error {
	lineage, _ := pki.LineageOf(cert)
	ticket, serial, prefix := pki.TicketOf(cert), pki.Serial(cert), pki.LineagePrefix(lineage)
	for _, r := range revoked {
		if r.Lineage == AnyTicket && ticket != "" {
			return ErrRevocationsLost
		}
		// A revocation names a lineage by its first serial number, or by any serial number with the
		// prefix of the lineage. A certificate that an earlier version renewed elsewhere can be
		// named by its own serial number. All certificates of a machine are revoked with its
		// ticket.
		if r.Name != "" && r.Name == cert.Subject.CommonName || r.Lineage != "" && (r.Lineage == lineage || r.Lineage == serial || r.Lineage == ticket || pki.LineagePrefixOf(r.Lineage) == prefix) {
			return fmt.Errorf("%s at %s (%s)", RevokedPrefix, r.At.UTC().Format(time.RFC3339), r)
		}
	}
	return nil
}
