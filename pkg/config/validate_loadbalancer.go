package config

import (
	"fmt"
	"math/big"
)

// maxInRange is the maximum number of addresses in a range. A larger range is probably a mistyped
// prefix length.
const maxInRange = 1 << 16

// poolValidator checks the ranges of addresses for Services. No two ranges may overlap.
type poolValidator struct {
	checks
	cluster []fieldNetwork // ranges of pods and Services
	before  []AddressRange // ranges that have been checked already
}

// pools validates the address pools for Services: their names and ranges.
func (v *poolValidator) pools(path string, pools []AddressPool) {
	names := map[string]bool{}
	for i, pool := range pools {
		at := fmt.Sprintf("%s[%d]", path, i)
		if err := dnsLabel(pool.Name); err != nil && pool.Name != "" {
			v.on(at+".name", wrong{reason: fmt.Sprintf("%s %v", quote(pool.Name), err), expected: "a DNS label"})
		}
		if names[pool.Name] && pool.Name != "" {
			v.on(at+".name", wrong{reason: fmt.Sprintf("%s is given twice", quote(pool.Name)), expected: "a name for each pool"})
		}
		names[pool.Name] = true
		if len(pool.Ranges) == 0 {
			v.on(at+".ranges", wrong{reason: "is empty", expected: "at least one range"})
		}
		for j, r := range pool.Ranges {
			if r.First.IsValid() {
				v.poolRange(fmt.Sprintf("%s.ranges[%d]", at, j), r)
				v.before = append(v.before, r)
			}
		}
	}
}

// externalIPs validates the ranges for the Service field externalIPs.
func (v *poolValidator) externalIPs(path string, ranges []AddressRange) {
	for i, r := range ranges {
		if r.First.IsValid() {
			v.poolRange(fmt.Sprintf("%s[%d]", path, i), r)
			v.before = append(v.before, r)
		}
	}
}

// poolRange validates a range.
func (v *poolValidator) poolRange(path string, r AddressRange) {
	if r.First.Is4In6() {
		v.on(path, mapped(r.First))
		return
	}
	if !r.First.IsGlobalUnicast() || !r.Last.IsGlobalUnicast() {
		v.on(path, wrong{reason: fmt.Sprintf("%s contains addresses that are not unicast", r), expected: "unicast addresses of the machines' network"})
	}
	if size := r.size(); size.Cmp(big.NewInt(maxInRange)) > 0 {
		v.on(path, wrong{reason: fmt.Sprintf("%s has %s addresses", r, size), expected: fmt.Sprintf("at most %d", maxInRange)})
	}
	for _, o := range v.before {
		if r.overlaps(o) {
			v.on(path, wrong{reason: fmt.Sprintf("%s overlaps the range %s, which is for Services, too", r, o), expected: "ranges without common addresses"})
		}
	}
	for _, o := range v.cluster {
		if r.overlaps(AddressRange{o.net.Masked().Addr(), lastAddress(o.net)}) {
			v.on(path, wrong{reason: fmt.Sprintf("%s overlaps the %s %s", r, o.what, o.net), expected: "ranges without common addresses"})
		}
	}
}
