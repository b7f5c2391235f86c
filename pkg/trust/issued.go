package trust

import (
	"fmt"
	"slices"
	"time"

	"github.com/orlop-os/orlop/pkg/pki"
)

const (
	// DefaultTTL is the TTL of an issued certificate if the caller requests none.
	DefaultTTL = 24 * time.Hour
	// MaxTTL is the longest TTL of an issued certificate. For a longer TTL, an operator issues the
	// certificate with a private CA (Machine.spec.trust.operatorCAs).
	MaxTTL = 30 * 24 * time.Hour
	// keepExpired is the time for which an expired certificate stays in the ledger.
	keepExpired = 7 * 24 * time.Hour
	// maxIssued is the maximum number of certificates in the ledger. If there are more, the ledger
	// drops the oldest entries. The dropped certificates stay valid, and an operator can revoke
	// them by their serial numbers.
	maxIssued = 2000
	// maxPerLineage is the maximum number of certificates of one lineage in the ledger. Without
	// this limit, a client with endless renewals would displace the certificates of all other
	// clients.
	maxPerLineage = 8
)

// Issued is a certificate that the machine has issued.
type Issued struct {
	Serial string `json:"serial"` // hexadecimal
	// serial number of the first certificate of the lineage; equal to Serial if this certificate is
	// no renewal
	Lineage string        `json:"origin"`
	Name    string        `json:"name"` // common name
	Role    string        `json:"role"` // for example "reader"
	At      time.Time     `json:"at"`
	Expires time.Time     `json:"expires"`
	TTL     time.Duration `json:"life"` // the TTL as requested, in nanoseconds
	By      string        `json:"by"`   // subject of the caller that requested it
}

// TTL returns the TTL that a certificate gets. asked is the requested TTL. If asked is zero, the
// result is the shorter of DefaultTTL and most. TTL returns an error if asked is shorter than a
// minute or longer than most.
func TTL(asked, most time.Duration) (time.Duration, error) {
	switch {
	case asked == 0:
		return min(DefaultTTL, most), nil
	case asked < time.Minute || asked > most:
		return 0, fmt.Errorf("TTL %s: cannot use: expected %s to %s; an operator's own CA can issue longer certificates", asked, time.Minute, most)
	}
	return asked, nil
}

// Certificates are the certificates that a machine has issued, oldest first.
type Certificates []Issued

// MaxRenewal returns the longest TTL that a renewal of the certificate with this serial number can
// have: the TTL of the certificate, or DefaultTTL if the list does not contain the certificate.
func (c Certificates) MaxRenewal(serial string) time.Duration {
	for _, i := range c {
		if i.Serial == serial {
			return i.TTL
		}
	}
	return DefaultTTL
}

// add returns the list with an additional certificate, as described at Ledger.AddIssued. now is the
// time by which the expiry is decided.
func (c Certificates) add(i Issued, now time.Time) Certificates {
	kept := slices.DeleteFunc(slices.Clone(c), func(old Issued) bool { return now.Sub(old.Expires) > keepExpired })
	kept = append(kept, i)
	count := 0
	for n, old := range slices.Backward(kept) {
		if old.Lineage == i.Lineage {
			if count++; count > maxPerLineage {
				kept = slices.Delete(kept, n, n+1)
			}
		}
	}
	return kept[max(0, len(kept)-maxIssued):]
}

// lineageOf returns the lineage ID of the certificate with this serial number. The list may have
// dropped the certificate itself; another certificate with the same lineage prefix is then
// sufficient. The result is empty if the list contains no certificate of the lineage.
func (c Certificates) lineageOf(serial string) string {
	if serial == "" {
		return ""
	}
	for _, i := range c {
		if i.Serial == serial {
			return i.Lineage
		}
	}
	prefix := pki.LineagePrefixOf(serial)
	if prefix == "" {
		return ""
	}
	for _, i := range c {
		if pki.LineagePrefix(i.Lineage) == prefix {
			return i.Lineage
		}
	}
	return ""
}

// SameLineage reports whether the certificate with this serial number belongs to the lineage with
// the ID lineage: it is the first certificate of the lineage, or its serial number has the prefix
// of the lineage.
func SameLineage(serial, lineage string) bool {
	return serial != "" && lineage != "" && (serial == lineage || pki.LineagePrefixOf(serial) == pki.LineagePrefix(lineage))
}
