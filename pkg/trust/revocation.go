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
	// maxRevoked bounds the revocations, because each call is checked against all of them. A full
	// list drops the oldest ticket that was revoked more than keepTicket ago, or else a restored
	// name.
	maxRevoked = 10000
	// keepTicket is the minimum time for which a full list retains the revocation of a ticket. The
	// certificates of the ticket had 90 days when it was revoked (memberTTL in machined), and
	// other issued certificates have MaxTTL. Certificates of an operator's own CA have no ticket
	// and can be valid for years.
	keepTicket = 120 * 24 * time.Hour
)

// Revocation is the ledger entry for a revoked lineage or name. Exactly one of Lineage and Name is
// set.
type Revocation struct {
	Lineage string `json:"origin,omitempty"` // lineage ID: serial of its first certificate
	Name    string `json:"name,omitempty"`   // common name in certificates
	// Machine is the name of the machine to which the ticket Lineage belongs. With it the node
	// garbage collection deletes the Node even if no membership contains the machine any more. It
	// is empty for other certificates, and where the machine is unknown.
	Machine string    `json:"machine,omitempty"`
	At      time.Time `json:"at"`
	By      string    `json:"by"` // subject of the caller that revoked it
	// Generation counts revocations and restorations. When machines sync, the entry with the
	// greater generation wins, regardless of the clocks.
	Generation uint64 `json:"count,omitempty"`
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

// expired reports whether all certificates of the revocation have certainly expired: it revokes a
// ticket, and is older than keepTicket.
func (r Revocation) expired(now time.Time) bool { return r.Machine != "" && now.Sub(r.At) > keepTicket }

// Revocations are the revocations that a machine knows, with the names that were restored.
type Revocations []Revocation

// Active returns the revocations that are not restored.
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
		// a hash accepts every write
		_, _ = fmt.Fprintf(sum, "%q %q %d %q %d %t\n", r.Name, r.Lineage, r.At.UnixNano(), r.By, r.Generation, r.Restored)
		if r.Machine != "" {
			_, _ = fmt.Fprintf(sum, "%q\n", r.Machine)
		}
	}
	return sum.Sum(nil)
}

// find returns the index of the entry for the same lineage or name as r, or -1.
func (l Revocations) find(r Revocation) int {
	return slices.IndexFunc(l, func(o Revocation) bool { return o.Lineage == r.Lineage && o.Name == r.Name })
}

// hasTicket reports whether the ticket with this serial number is revoked. In the revocation of a
// ticket, Lineage is the serial number of the ticket.
func (l Revocations) hasTicket(serial string) bool {
	return slices.ContainsFunc(l, func(r Revocation) bool { return r.Lineage == serial })
}

// set returns the list with r in place of the entry for the same lineage or name. It returns false
// if the list is full.
func (l Revocations) set(r Revocation, now time.Time) (Revocations, bool) {
	return place(slices.Clone(l), l.find(r), r, now)
}

// merge returns the list with the revocations of another machine, and the new entries. See
// Ledger.MergeRevocations.
func (l Revocations) merge(received []Revocation, now time.Time) (next Revocations, added []Revocation, err error) {
	refused := 0
	// cloned once, because the list can be as long as maxRevoked
	next = slices.Clone(l)
	for _, r := range received {
		if wrong := r.check(); wrong != nil {
			refused++
			err = cmp.Or(err, wrong)
			continue
		}
		i := next.find(r)
		// it would displace another entry
		if i < 0 && (r.Restored || r.expired(now)) && len(next) >= maxRevoked {
			continue
		}
		if i >= 0 {
			old := next[i]
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
		list, ok := place(next, i, r, now)
		if !ok {
			return next, added, errors.Join(fmt.Errorf("revocations: there are %d already; restore names without valid certificates", maxRevoked), skippedError(refused, err))
		}
		next, added = list, append(added, r)
	}
	return next, added, skippedError(refused, err)
}

// skippedError returns an error with the number of skipped entries and the first reason, or nil if
// none was skipped.
func skippedError(refused int, first error) error {
	if refused == 0 {
		return nil
	}
	return fmt.Errorf("revocations: cannot use %d of the received entries: %w", refused, first)
}

// place sets list[i] to r, or appends r if i is negative. It changes list in place. It returns
// false, and changes nothing, if the list is full.
//
// A full list first drops the oldest ticket without valid certificates. It does no harm if a peer
// reports this ticket again. Otherwise the list drops a restored name: a machine that was off since
// the restoration would bring the revocation back, which is the safe side.
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
