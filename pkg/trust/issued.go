package trust

import (
	"fmt"
	"slices"
	"time"

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
)

// Issued is a certificate that the machine has issued.
type Issued struct {
	Serial string `json:"serial"` // hexadecimal
	// serial number of the first certificate of the lineage; equal to Serial without a renewal
	Lineage string        `json:"origin"`
	Name    string        `json:"name"` // common name
	Role    string        `json:"role"` // "reader"
	At      time.Time     `json:"at"`
	Expires time.Time     `json:"expires"`
	TTL     time.Duration `json:"life"` // the requested TTL in nanoseconds
	By      string        `json:"by"`   // subject of the caller that requested it
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

// Certificates are the certificates that a machine has issued, oldest first.
type Certificates []Issued

// MaxRenewal returns the longest TTL of a renewal of the certificate with this serial number: the
// TTL of that certificate, or DefaultTTL if the list does not contain it.
func (c Certificates) MaxRenewal(serial string) time.Duration {
	for _, i := range c {
		if i.Serial == serial {
			return i.TTL
		}
	}
	return DefaultTTL
}

// add returns the list with an additional certificate. It drops certificates that expired more than
// keepExpired before now, and all but the last maxPerLineage certificates of the lineage.
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

// lineageOf returns the lineage ID of the certificate with this serial number, or an empty string
// if the list does not show it. The list contains only the newest certificates of a lineage with
// many renewals.
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

// SameLineage reports whether a revoked serial number belongs to the lineage with ID lineage.
func SameLineage(serial, lineage string) bool {
	return serial != "" && lineage != "" && (serial == lineage || pki.LineagePrefixOf(serial) == pki.LineagePrefix(lineage))
}
