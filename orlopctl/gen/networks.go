package gen

import (
	"crypto/sha256"
	"net/netip"
	"slices"

	"github.com/orlop-os/orlop/pkg/config"
)

// networks returns the ranges of pods and Services. Usually it returns the default ranges. If the
// API has only IPv6 addresses, it returns unique local ranges (RFC 4193) with a global ID from the
// hash of the cluster's CA: all configurations with the same secrets get the same ranges, and two
// clusters get different ranges. The range of pods is a /56, for 256 machines like the default
// range. The range of Services is a /112.
func networks(have config.ClusterNetworks, endpoint config.Endpoint, machines []netip.Addr, ca config.Certificate) config.ClusterNetworks {
	if !onlyIPv6(endpoint, machines) {
		return have
	}
	id := sha256.Sum256([]byte(ca.PEM()))
	site := [16]byte{0: 0xfd}
	copy(site[1:6], id[:5])
	services := site
	services[6], services[7] = 0xff, 0xff
	have.Pods = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom16(site), 56)}
	have.Services = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom16(services), 112)}
	return have
}

// onlyIPv6 reports whether all known addresses of the API and of the machines are IPv6. The address
// of a host name is unknown.
func onlyIPv6(endpoint config.Endpoint, machines []netip.Addr) bool {
	known := slices.Clone(machines)
	if a, err := netip.ParseAddr(endpoint.Host); err == nil {
		known = append(known, a)
	}
	return len(known) > 0 && !slices.ContainsFunc(known, netip.Addr.Is4)
}
