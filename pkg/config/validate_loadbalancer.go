package config

import (
	"fmt"
	"math/big"
)

// maxInRange is the maximum number of addresses in a range: a larger range is a mistyped prefix
// length.
const maxInRange = 1 << 16

// pools validates the address pools for Services: their names and ranges, and overlaps with other
// ranges of the cluster. It returns the ranges.
func (p *parser) pools(path string, n *ClusterNetworks) (before []AddressRange) {
	names := map[string]bool{}
	for i, pool := range n.LoadBalancer.Pools {
		at := fmt.Sprintf("%s[%d]", path, i)
		if err := dnsLabel(pool.Name); err != nil && pool.Name != "" {
			p.on(at+".name", wrong{reason: fmt.Sprintf("%s %v", quote(pool.Name), err), expected: "a DNS label"})
		}
		if names[pool.Name] && pool.Name != "" {
			p.on(at+".name", wrong{reason: fmt.Sprintf("%s is given twice", quote(pool.Name)), expected: "a name for each pool"})
		}
		names[pool.Name] = true
		if len(pool.Ranges) == 0 {
			p.on(at+".ranges", wrong{reason: "is empty", expected: "at least one range"})
		}
		for j, r := range pool.Ranges {
			if r.First.IsValid() {
				p.poolRange(fmt.Sprintf("%s.ranges[%d]", at, j), r, before)
				before = append(before, r)
			}
		}
	}
	return before
}

// externalIPs validates the ranges for the Service field externalIPs. before are the ranges of the
// pools, with which they must not overlap.
func (p *parser) externalIPs(path string, n *ClusterNetworks, before []AddressRange) {
	for i, r := range n.ExternalIPs {
		if r.First.IsValid() {
			p.poolRange(fmt.Sprintf("%s[%d]", path, i), r, before)
			before = append(before, r)
		}
	}
}

// poolRange validates a range of a pool. before are the previous ranges.
func (p *parser) poolRange(path string, r AddressRange, before []AddressRange) {
	if r.First.Is4In6() {
		p.on(path, mapped(r.First))
		return
	}
	if !r.First.IsGlobalUnicast() || !r.Last.IsGlobalUnicast() {
		p.on(path, wrong{reason: fmt.Sprintf("%s contains addresses that are not unicast", r), expected: "unicast addresses of the machines' network"})
	}
	if size := r.size(); size.Cmp(big.NewInt(maxInRange)) > 0 {
		p.on(path, wrong{reason: fmt.Sprintf("%s has %s addresses", r, size), expected: fmt.Sprintf("at most %d", maxInRange)})
	}
	for _, o := range before {
		if r.overlaps(o) {
			p.on(path, wrong{reason: fmt.Sprintf("%s overlaps the range %s, which is for Services, too", r, o), expected: "ranges without common addresses"})
		}
	}
	for _, o := range p.clusterRanges() {
		if r.overlaps(AddressRange{o.net.Masked().Addr(), last(o.net)}) {
			p.on(path, wrong{reason: fmt.Sprintf("%s overlaps the %s %s", r, o.what, o.net), expected: "ranges without common addresses"})
		}
	}
}

// inPools checks that no pool and no range for external addresses contains a known address of a
// machine or another host.
func (p *parser) inPools() {
	spec := &p.cfg.Cluster.Spec
	taken := p.otherAddresses()
	for i, l := range p.cfg.Network.Spec.Links {
		for j, a := range l.Addresses {
			if usable(a) {
				at := fmt.Sprintf("Network.spec.links[%d].addresses[%d]", i, j)
				taken = append(taken, single(at, "the machine's address", a.Addr()))
			}
		}
	}
	check := func(r AddressRange, of, outside string) {
		for _, own := range taken {
			if r.First.IsValid() && r.Contains(own.net.Addr()) {
				p.on(own.path, wrong{reason: fmt.Sprintf("%s the range %s of %s", own.what, r, of), expected: "an address outside " + outside})
			}
		}
	}
	for _, pool := range spec.Networks.LoadBalancer.Pools {
		for _, r := range pool.Ranges {
			check(r, "the pool "+quote(pool.Name), "the pools for Services")
		}
	}
	for _, r := range spec.Networks.ExternalIPs {
		check(r, "Cluster.spec.networks.externalIPs", "these ranges")
	}
}
