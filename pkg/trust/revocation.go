package trust

import (
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/orlop-os/orlop/pkg/pki"
)

const (
	// maxRevoked is the maximum number of revocations. There is a maximum because each call is
	// checked against all revocations. The function place drops an entry of a full list.
	maxRevoked = 10000
	// keepTicket is the minimum time for which a full list retains the revocation of a ticket. It
	// is longer than the 90 days for which the certificates of a member can still be valid after
	// the revocation (memberTTL in machined). The age of other revocations is no reason to drop
	// them, because a certificate of an operator's own CA can be valid for years.
	keepTicket = 120 * 24 * time.Hour
)

// Revocation is the ledger entry for a revoked lineage or a revoked name. Exactly one of Lineage
// and Name is set.
type Revocation struct {
	Lineage string `json:"origin,omitempty"` // lineage ID, or another serial number of the lineage
	Name    string `json:"name,omitempty"`   // common name in the certificates
	// Machine is the name of the machine to which the revoked ticket, Lineage, belongs. The node
	// garbage collection uses it to delete the Node of a machine that no membership contains any
	// more. It is empty if Lineage is no ticket, or if the machine is unknown.
	Machine string    `json:"machine,omitempty"`
	At      time.Time `json:"at"`
	By      string    `json:"by"` // subject of the caller that revoked it
	// Generation increases by 1 with each revocation and restoration of the entry. When machines
	// sync, they take the entry with the higher generation, so the result does not depend on their
	// clocks.
	Generation uint64 `json:"count,omitempty"`
	// Restored is true if the name is valid again. The entry stays: without it, a machine that was
	// off during the restoration would bring the revocation back.
	Restored bool `json:"restored,omitempty"`
}

// supersedes reports whether r replaces o, if two machines have these entries for the same lineage
// or name. The entry with the higher generation replaces the other. If the generations are equal, a
// revocation replaces a restoration, then an earlier entry replaces a later one, and then By
// decides. So every machine chooses the same entry.
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

// String returns the revoked object, for example "name alice" or "certificate 12ab34".
func (r Revocation) String() string {
	if r.Name != "" {
		return "name " + r.Name
	}
	return "certificate " + r.Lineage
}

// label returns the same text as String for input that is not checked yet: the value is quoted and
// cut to 80 characters.
func (r Revocation) label() string {
	if r.Name != "" {
		return fmt.Sprintf("name %.80q", r.Name)
	}
	return fmt.Sprintf("certificate %.80q", r.Lineage)
}

// check returns an error if the revocation is invalid. No ledger contains an invalid revocation.
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

// expired reports whether r revokes a ticket and is older than keepTicket. All certificates that r
// revokes have then expired.
func (r Revocation) expired(now time.Time) bool { return r.Machine != "" && now.Sub(r.At) > keepTicket }

// Revocations are the revocations that a machine knows. They include the entries of restored names.
type Revocations []Revocation

// Active returns the revocations without the entries of restored names.
func (l Revocations) Active() Revocations {
	return slices.DeleteFunc(slices.Clone(l), func(r Revocation) bool { return r.Restored })
}

// Digest returns a hash that is equal on machines with equal revocations.
func (l Revocations) Digest() []byte {
	list := slices.SortedFunc(slices.Values(l), func(a, o Revocation) int {
		return cmp.Or(cmp.Compare(a.Name, o.Name), cmp.Compare(a.Lineage, o.Lineage))
	})
	sum := sha256.New()
	for _, r := range list {
		// Writes to a hash never fail.
		_, _ = fmt.Fprintf(sum, "%q %q %d %q %d %t\n", r.Name, r.Lineage, r.At.UnixNano(), r.By, r.Generation, r.Restored)
		if r.Machine != "" {
			_, _ = fmt.Fprintf(sum, "%q\n", r.Machine)
		}
	}
	return sum.Sum(nil)
}

// find returns the index of the entry with the lineage and name of r, or -1 if there is none.
func (l Revocations) find(r Revocation) int {
	return slices.IndexFunc(l, func(o Revocation) bool { return o.Lineage == r.Lineage && o.Name == r.Name })
}

// hasTicket reports whether the ticket with this serial number is revoked.
func (l Revocations) hasTicket(serial string) bool {
	return slices.ContainsFunc(l, func(r Revocation) bool { return r.Lineage == serial })
}

// set returns a copy of the list in which r replaces the entry for the same lineage or name, or is
// added. The result is false if the list is full and the function place can drop no entry.
func (l Revocations) set(r Revocation, now time.Time) (Revocations, bool) {
	return place(slices.Clone(l), l.find(r), r, now)
}

// merge implements Ledger.MergeRevocations.
func (l Revocations) merge(received []Revocation, now time.Time) (next Revocations, added []Revocation, err error) {
	refused := 0
	// One copy is made for all entries, because the list can have maxRevoked entries.
	next = slices.Clone(l)
	for _, r := range received {
		if wrong := r.check(); wrong != nil {
			refused++
			err = cmp.Or(err, wrong)
			continue
		}
		i := next.find(r)
		// A restored name and an expired revocation reject no certificate, so they do not displace
		// another entry of a full list.
		if i < 0 && (r.Restored || r.expired(now)) && len(next) >= maxRevoked {
			continue
		}
		if i >= 0 {
			old := next[i]
			// The name of the machine can be missing in one of the two entries.
			machine, later := max(old.Machine, r.Machine), r.supersedes(old)
			if !later && machine == old.Machine {
				continue
			}
			if !later {
				r = old
			}
			r.Machine = machine
		}
		list, ok := place(next, i, r, now)
		if !ok {
			return next, added, errors.Join(fmt.Errorf("revocations: the list is full (%d revocations); to make space, restore a name that no valid certificate has", maxRevoked), skippedError(refused, err))
		}
		next, added = list, append(added, r)
	}
	return next, added, skippedError(refused, err)
}

// skippedError returns an error with the number of skipped entries and the reason for the first of
// them. It returns nil if refused is 0.
func skippedError(refused int, first error) error {
	if refused == 0 {
		return nil
	}
	return fmt.Errorf("revocations: cannot use %d of the received entries: %w", refused, first)
}

// place sets list[i] to r, or appends r if i is negative. It changes list in place. The result is
// false if the list is full and no entry can be dropped; then list is unchanged.
//
// A full list drops the oldest entry of a ticket without valid certificates (Revocation.expired).
// If a peer sends this entry again, it does no harm, because its certificates have expired. If
// there is no such entry, the list drops the first restored name. A machine that was off since the
// restoration can then bring the revocation back, which rejects a valid name but never accepts a
// revoked one.
func place(list Revocations, i int, r Revocation, now time.Time) (Revocations, bool) {
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

// RevokedPrefix is the start of each error text about a revoked certificate.
const RevokedPrefix = "your certificate was revoked"

// ErrRevocationsLost is returned for the certificate of a member if this machine has lost its
// revocations. The machine does not know whether the certificate is revoked.
var ErrRevocationsLost = errors.New("this machine cannot read its revocations, so it rejects the certificates of all members; `orlopctl trust revoke --new-list` starts a new list")

// AnyTicket is the Lineage of a revocation that stands for all tickets. A machine that has lost its
// revocations uses it, because it no longer knows which tickets are revoked. No ledger contains it.
const AnyTicket = "any ticket"

// RevokedSet contains the facts by which Kubernetes rejects client certificates that it would
// otherwise accept until they expire. machined writes it, and package orchestrator/revocation reads
// it.
type RevokedSet struct {
	Revoked []Revocation `json:"revoked"`
	// TrustedRoots are the fingerprints (pki.Fingerprint) of the operator CAs. A certificate is
	// rejected if the first certificate of its lineage was issued by another CA.
	TrustedRoots []string `json:"roots"`
}

// ErrUntrustedRoot is returned for a certificate if the CA that issued the first certificate of its
// lineage is no longer an operator CA.
var ErrUntrustedRoot = errors.New("the lineage of this certificate began with a CA that is no longer an operator CA")

// Check returns the error of CheckRevoked, or ErrUntrustedRoot if the lineage of the certificate
// began with a CA that is not in TrustedRoots. It returns nil for an accepted certificate.
func (r RevokedSet) Check(cert *x509.Certificate) error {
	if err := CheckRevoked(r.Revoked, cert); err != nil {
		return err
	}
	if _, root := pki.LineageOf(cert); root != "" && !slices.Contains(r.TrustedRoots, root) {
		return ErrUntrustedRoot
	}
	return nil
}

// CheckRevoked returns an error with the prefix RevokedPrefix if one of the revocations applies to
// the certificate. It returns ErrRevocationsLost if the certificate belongs to a member and the
// revocations of tickets are lost (AnyTicket).
func CheckRevoked(revoked []Revocation, cert *x509.Certificate) error {
	lineage, _ := pki.LineageOf(cert)
	ticket, serial, prefix := pki.TicketOf(cert), pki.Serial(cert), pki.LineagePrefix(lineage)
	for _, r := range revoked {
		if r.Lineage == AnyTicket && ticket != "" {
			return ErrRevocationsLost
		}
		// The value r.Lineage is one of these: the ID of a lineage; the serial number of a renewal,
		// with the prefix of its lineage; the serial number of a renewal by an earlier version,
		// without the prefix; or a ticket, which revokes all certificates of its machine.
		if r.Name != "" && r.Name == cert.Subject.CommonName || r.Lineage != "" && (r.Lineage == lineage || r.Lineage == serial || r.Lineage == ticket || pki.LineagePrefixOf(r.Lineage) == prefix) {
			return fmt.Errorf("%s at %s (%s)", RevokedPrefix, r.At.UTC().Format(time.RFC3339), r)
		}
	}
	return nil
}
