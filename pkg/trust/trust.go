// Package trust is a machine's book of the client certificates that it has issued, and of those
// that count no more.
//
// A certificate that was renewed belongs to the row of the first one (pki.LineageOf). Revoking any
// of a row revokes all of it, whether or not the book knows that one: its serial number says which
// row it is of (pki.LineagePrefixOf). Whoever has stolen a certificate may have renewed it. A name that is
// revoked is refused whatever certificate says it, until it is restored.
//
// The package decides; it keeps no files and issues nothing.
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
	// DefaultTTL is how long an issued certificate is valid unless something else is asked for.
	DefaultTTL = 24 * time.Hour
	// MaxTTL is the most that can be asked for. Who needs longer has a CA of his own
	// (Machine.spec.trust.operatorCAs).
	MaxTTL = 30 * 24 * time.Hour
	// keepExpired is how long a certificate that has expired stays in the book.
	keepExpired = 7 * 24 * time.Hour
	// maxIssued is how many certificates the book holds. The oldest go first; they stay valid, and
	// can be revoked by their serial.
	maxIssued = 2000
	// maxOfRow is how many of one row the book holds: who renews without end takes nobody else's
	// place.
	maxOfRow = 8
	// maxRevoked bounds the revocations: all of them are looked at when a call is made. A full list
	// forgets the oldest ticket that was revoked longer than keepTicket ago, else a name that was
	// restored.
	maxRevoked = 10000
	// keepTicket is how long a full list remembers a ticket at least. What came of it had 90 days
	// when it was revoked (machined's memberLife), and what else machines issue has MaxTTL.
	// Certificates by an operator's own CA, which come of no ticket, can last for years.
	keepTicket = 120 * 24 * time.Hour
)

// Issued is a certificate that the machine has issued.
type Issued struct {
	Serial string `json:"serial"` // hexadecimal
	// serial of the first of its row; its own if it was not renewed
	Lineage string        `json:"origin"`
	Name    string        `json:"name"` // common name
	Role    string        `json:"role"` // "reader"
	At      time.Time     `json:"at"`
	Expires time.Time     `json:"expires"`
	TTL     time.Duration `json:"life"` // that was asked for, nanoseconds
	By      string        `json:"by"`   // subject of who asked for it
}

// Revocation is what counts no more: exactly one of Origin and Name is set.
type Revocation struct {
	Lineage string `json:"origin,omitempty"` // a row of certificates, by the serial of the first
	Name    string `json:"name,omitempty"`   // all certificates with this common name
	// Machine is the name of the machine whose ticket Origin is: its Node is forgotten also when no
	// roll holds it any more. Empty for everybody else's certificates, and where it is not known.
	Machine string    `json:"machine,omitempty"`
	At      time.Time `json:"at"`
	By      string    `json:"by"` // subject of who did it
	// Generation is how often it was revoked or restored. Machines that learn from each other believe
	// the greater one, whatever their clocks say.
	Generation uint64 `json:"count,omitempty"`
	// the name counts again; kept so that a machine that was away does not bring the revocation
	// back
	Restored bool `json:"restored,omitempty"`
}

// after tells whether r is what becomes of a name or certificate of which one machine says r and
// another says o. It is the same on both: the later one; of two that were made at the same time the
// one that refuses; of two that refuse the one that was said first.
func (r Revocation) after(o Revocation) bool {
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

// String is "name alice", or "certificate 12ab…".
func (r Revocation) String() string {
	if r.Name != "" {
		return "name " + r.Name
	}
	return "certificate " + r.Lineage
}

// label is String with its texts cut, for what has not been checked.
func (r Revocation) label() string {
	if r.Name != "" {
		return fmt.Sprintf("name %.80q", r.Name)
	}
	return fmt.Sprintf("certificate %.80q", r.Lineage)
}

// Ledger is both, and the roll of the cluster's members. The zero Book is empty.
type Ledger struct {
	// ID is the book's name: random, made when it is first written. One that is lost is begun anew,
	// with another.
	ID      string       `json:"id,omitempty"`
	Issued  []Issued     `json:"issued,omitempty"` // oldest first; tickets are not among them
	Revoked []Revocation `json:"revoked,omitempty"`
	// ControlPlanes are the names of the cluster's other control-plane machines by their addresses, as
	// they have said them: nobody else is given them, also while those machines are off.
	ControlPlanes map[string]string `json:"planes,omitempty"`
	Membership                      // who is one of the cluster, and who may become it
	// Floor is a time that has passed for certain (package timesync), which is not kept. Nothing
	// is dropped because it ended later than this, whatever the clock says: time servers prove
	// nothing. Zero: the clock is believed.
	Floor time.Time `json:"-"`
}

// surely is the time by which things are dropped: the clock's, unless it is ahead of what has
// passed for certain.
func (b Ledger) surely(now time.Time) time.Time {
	if !b.Floor.IsZero() && b.Floor.Before(now) {
		return b.Floor
	}
	return now
}

var name = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$`)

// CheckName tells whether a certificate can be issued for a name.
func CheckName(n string) error {
	if !name.MatchString(n) {
		return fmt.Errorf("name %.80q: cannot use: expected 1 to 64 letters, digits and . _ @ -, with a letter or digit first", n)
	}
	return nil
}

// CheckHolder tells whether a text can be the name in a certificate, whoever has issued it.
func CheckHolder(n string) error {
	if n == "" || len(n) > 128 || !utf8.ValidString(n) || strings.ContainsFunc(n, unicode.IsControl) {
		return fmt.Errorf("name %.80q: cannot use: expected 1 to 128 bytes of text", n)
	}
	return nil
}

var serial = regexp.MustCompile(`^[0-9a-f]{1,40}$`)

// ParseSerial reads a serial number in hexadecimal (RFC 5280 allows 20 octets), with colons between
// the octets and zeros before it or not.
func ParseSerial(text string) (string, error) {
	s := strings.TrimLeft(strings.ReplaceAll(strings.ToLower(text), ":", ""), "0")
	if !serial.MatchString(s) {
		return "", fmt.Errorf("serial %.80q: cannot use: expected the whole of it in hexadecimal, as `orlopctl trust list` shows it", text)
	}
	return s, nil
}

// TTL is how long a certificate is to be valid: what was asked for, or for zero the default, or
// the most if that is less.
func TTL(asked, most time.Duration) (time.Duration, error) {
	switch {
	case asked == 0:
		return min(DefaultTTL, most), nil
	case asked < time.Minute || asked > most:
		return 0, fmt.Errorf("life %s: cannot use: expected %s to %s; an operator's own CA can give more", asked, time.Minute, most)
	}
	return asked, nil
}

// MaxRenewal is how long a renewal of the certificate with that serial may be valid: not longer than
// that one was, or DefaultTTL if the book does not know it.
func (b Ledger) MaxRenewal(serial string) time.Duration {
	for _, i := range b.Issued {
		if i.Serial == serial {
			return i.TTL
		}
	}
	return DefaultTTL
}

// AddIssued is the book with a certificate more, without what has long expired and all but the last of
// its row.
func (b Ledger) AddIssued(i Issued) Ledger {
	now := b.surely(i.At)
	kept := slices.DeleteFunc(slices.Clone(b.Issued), func(old Issued) bool { return now.Sub(old.Expires) > keepExpired })
	kept = append(kept, i)
	row := 0
	for n, c := range slices.Backward(kept) {
		if c.Lineage == i.Lineage {
			if row++; row > maxOfRow {
				kept = slices.Delete(kept, n, n+1)
			}
		}
	}
	b.Issued = kept[max(0, len(kept)-maxIssued):]
	return b
}

// HasIssued tells whether a certificate is, or was renewed from, one that the machine has issued.
func (b Ledger) HasIssued(serial string) bool {
	_, ticket := b.ticket(serial)
	return ticket || b.originOf(serial) != "" || slices.ContainsFunc(b.Issued, func(i Issued) bool { return i.Lineage == serial })
}

// Revoke is the book in which a certificate (by its serial) or a name counts no more. A certificate
// that counts no more already is not noted again; a name is, because somebody whom this machine has
// not heard of yet may have restored it.
func (b Ledger) Revoke(r Revocation) (Ledger, Revocation, error) {
	if origin := b.originOf(r.Lineage); origin != "" {
		r.Lineage = origin
	}
	r.Generation, r.Restored = 1, false
	if err := r.check(); err != nil {
		return b, r, fmt.Errorf("revocation refused: %w", err)
	}
	if i := b.find(r); i >= 0 {
		if old := b.Revoked[i]; !old.Restored {
			if r.Name == "" {
				return b, old, nil
			}
			r.At, r.By = old.At, old.By
		}
		r.Generation = b.Revoked[i].Generation + 1
	}
	next, ok := b.put(r, r.At)
	if !ok {
		return b, r, fmt.Errorf("revocation refused: there are %d already; restore names that no valid certificate has any more", maxRevoked)
	}
	return next.settle(), r, nil
}

// originOf is the first certificate of the row that one belongs to, by its serial; empty where the
// book does not know it. Of a row that has been renewed often it knows the last ones only.
func (b Ledger) originOf(serial string) string {
	if serial == "" {
		return ""
	}
	for _, i := range b.Issued {
		if i.Serial == serial {
			return i.Lineage
		}
	}
	row := pki.LineagePrefixOf(serial)
	if row == "" {
		return ""
	}
	for _, i := range b.Issued {
		if pki.LineagePrefix(i.Lineage) == row {
			return i.Lineage
		}
	}
	return ""
}

// SameLineage tells whether a serial number that is revoked is of the row that begins with the
// certificate origin.
func SameLineage(serial, origin string) bool {
	return serial != "" && origin != "" && (serial == origin || pki.LineagePrefixOf(serial) == pki.LineagePrefix(origin))
}

// Restore is the book in which a name counts again.
func (b Ledger) Restore(r Revocation) (Ledger, error) {
	i := b.find(r)
	if r.Name == "" || i < 0 || b.Revoked[i].Restored {
		return b, fmt.Errorf("name %.80q: cannot restore: it is not revoked", r.Name)
	}
	r.Generation, r.Restored = b.Revoked[i].Generation+1, true
	next, _ := b.put(r, r.At) // it takes the place of another
	return next, nil
}

// MergeRevocations is the book with what another machine knows, and what of that is news. What could not be
// written down here, or could not have been revoked here, is left out, and the error says so; the
// rest is learnt all the same: nobody keeps others from a revocation by sending nonsense beside it.
func (b Ledger) MergeRevocations(learnt []Revocation, now time.Time) (next Ledger, news []Revocation, err error) {
	next, now = b, b.surely(now)
	refused := 0
	next.Revoked = slices.Clone(b.Revoked) // once: there may be as many news as there is room for
	for _, r := range learnt {
		if wrong := r.check(); wrong != nil {
			refused++
			err = cmp.Or(err, wrong)
			continue
		}
		i := next.find(r)
		// it would push out another
		if i < 0 && (r.Restored || r.over(now)) && len(next.Revoked) >= maxRevoked {
			continue
		}
		if i >= 0 {
			old := next.Revoked[i]
			// who has said it may not have known the machine
			machine, later := max(old.Machine, r.Machine), r.after(old)
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
			return next.settle(), news, errors.Join(fmt.Errorf("revocations: there are %d already; restore names that no valid certificate has any more", maxRevoked), unusable(refused, err))
		}
		next.Revoked, news = list, append(news, r)
	}
	return next.settle(), news, unusable(refused, err)
}

// unusable says how much of what was sent was left out, and why the first of it; nil for nothing.
func unusable(refused int, first error) error {
	if refused == 0 {
		return nil
	}
	return fmt.Errorf("revocations: cannot use %d of what was sent: %w", refused, first)
}

// check refuses what no book can hold, whoever says it.
func (r Revocation) check() error {
	var wrong error
	switch {
	case (r.Lineage == "") == (r.Name == ""):
		wrong = errors.New("it has to name a certificate or a name, and not both")
	case r.Lineage != "" && r.Restored:
		wrong = errors.New("a certificate cannot be restored")
	case r.Machine != "" && r.Lineage == "":
		wrong = errors.New("a name is no machine's ticket")
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

// maxBy is the length of a subject in bytes, as apid passes it on.
const maxBy = 128

// find is where what r is about stands in the list; -1: nowhere.
func (b Ledger) find(r Revocation) int {
	return slices.IndexFunc(b.Revoked, func(o Revocation) bool { return o.Lineage == r.Lineage && o.Name == r.Name })
}

// over tells whether nothing that a revocation is of is valid any more: it is of a ticket, and long
// ago.
func (r Revocation) over(now time.Time) bool { return r.Machine != "" && now.Sub(r.At) > keepTicket }

// put is the book with r in the place of what it knows of the same.
func (b Ledger) put(r Revocation, now time.Time) (Ledger, bool) {
	list, ok := place(slices.Clone(b.Revoked), b.find(r), r, b.surely(now))
	if ok {
		b.Revoked = list
	}
	return b, ok
}

// place puts r at i of a list, which it changes, or at its end where i is negative; it changes
// nothing when it returns false. A full list forgets the oldest ticket of which nothing is valid
// any more; to learn of it again from somebody does no harm. Without one it forgets a name that was
// restored: a machine that was away since then would have it revoked again, which is the safe side.
func place(list []Revocation, i int, r Revocation, now time.Time) ([]Revocation, bool) {
	if i >= 0 {
		list[i] = r
		return list, true
	}
	if len(list) >= maxRevoked {
		oldest := -1
		for n, o := range list {
			if o.over(now) && (oldest < 0 || cmp.Or(o.At.Compare(list[oldest].At), cmp.Compare(o.Lineage, list[oldest].Lineage)) < 0) {
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

// ActiveRevocations are those that are not restored.
func (b Ledger) ActiveRevocations() []Revocation {
	return slices.DeleteFunc(slices.Clone(b.Revoked), func(r Revocation) bool { return r.Restored })
}

// Digest is the same on machines that know the same.
func (b Ledger) Digest() []byte {
	list := slices.SortedFunc(slices.Values(b.Revoked), func(a, o Revocation) int {
		return cmp.Or(cmp.Compare(a.Name, o.Name), cmp.Compare(a.Lineage, o.Lineage))
	})
	sum := sha256.New()
	for _, r := range list {
		// a hash takes everything
		_, _ = fmt.Fprintf(sum, "%q %q %d %q %d %t\n", r.Name, r.Lineage, r.At.UnixNano(), r.By, r.Generation, r.Restored)
		if r.Machine != "" {
			_, _ = fmt.Fprintf(sum, "%q\n", r.Machine)
		}
	}
	return sum.Sum(nil)
}

// RevokedPrefix begins every refusal.
const RevokedPrefix = "your certificate was revoked"

// ErrRevocationsLost is why a certificate that came by a ticket does not count at a machine that has lost
// its list: it was not revoked, as far as anybody knows.
var ErrRevocationsLost = errors.New("this machine cannot read its list of what was revoked, so no certificate that came by a ticket counts here; `orlopctl trust revoke --new-list` begins a new one")

// AnyTicket stands for all tickets, where it is not known any more which of them are revoked. It is
// in no book.
const AnyTicket = "any ticket"

// RevokedSet is what counts no more of the client certificates that Kubernetes would believe until
// they end. machined writes it, and package orchestrator/revocation reads it.
type RevokedSet struct {
	Revoked []Revocation `json:"revoked"`
	// TrustedRoots are the fingerprints (pki.Fingerprint) of the authorities whose certificates operators
	// come by. What was issued to somebody who came by another one counts no more.
	TrustedRoots []string `json:"roots"`
}

// ErrUntrustedRoot is why a certificate counts no more whose holder came by an authority that is not an
// operator's any more.
var ErrUntrustedRoot = errors.New("the authority that this certificate was issued on the word of is not an operator's any more")

// Check is why a certificate counts no more, or nil.
func (r RevokedSet) Check(cert *x509.Certificate) error {
	if err := CheckRevoked(r.Revoked, cert); err != nil {
		return err
	}
	if _, root := pki.LineageOf(cert); root != "" && !slices.Contains(r.TrustedRoots, root) {
		return ErrUntrustedRoot
	}
	return nil
}

// CheckRevoked is why a certificate counts no more, or nil: ErrRevocationsLost if that is not known of any.
func CheckRevoked(revoked []Revocation, cert *x509.Certificate) error {
	origin, _ := pki.LineageOf(cert)
	ticket, serial, row := pki.TicketOf(cert), pki.Serial(cert), pki.LineagePrefix(origin)
	for _, r := range revoked {
		if r.Lineage == AnyTicket && ticket != "" {
			return ErrRevocationsLost
		}
		// A row is revoked by its first serial, or by any that says which row it is of. One that a
		// version before has renewed elsewhere may be named by its own. What a machine has got goes
		// with its ticket.
		if r.Name != "" && r.Name == cert.Subject.CommonName || r.Lineage != "" && (r.Lineage == origin || r.Lineage == serial || r.Lineage == ticket || pki.LineagePrefixOf(r.Lineage) == row) {
			return fmt.Errorf("%s at %s (%s)", RevokedPrefix, r.At.UTC().Format(time.RFC3339), r)
		}
	}
	return nil
}
