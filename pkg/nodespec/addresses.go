package nodespec

import (
	"net/netip"
	"slices"
	"strings"
)

// AddressesAnnotation is where a node publishes all addresses of its machine, separated by commas;
// its status has the first of each family.
const AddressesAnnotation = "network.orlop.dev/addresses"

// mostAddresses is how many a machine publishes, and how many are read of one Node: whoever has a
// kubelet's certificate can write any.
const mostAddresses = 64

// Published is the annotation for the addresses that a machine's links have: those that others may
// reach it by, in order, each once. Addresses of pods are left out, the bridge's among them.
func Published(links []netip.Addr, pods []netip.Prefix) string {
	var own []netip.Addr
	for _, a := range links {
		a = a.Unmap()
		inside := slices.ContainsFunc(pods, func(p netip.Prefix) bool { return p.Contains(a) })
		if a.IsGlobalUnicast() && a.Zone() == "" && !inside {
			own = append(own, a)
		}
	}
	slices.SortFunc(own, netip.Addr.Compare)
	own = slices.Compact(own)
	var words []string
	for _, a := range own[:min(len(own), mostAddresses)] {
		words = append(words, a.String())
	}
	return strings.Join(words, ",")
}

// ReadPublished are the addresses of the annotation. What is no address of one machine is left out.
func ReadPublished(text string) []netip.Addr {
	var out []netip.Addr
	for word := range strings.SplitSeq(text, ",") {
		if a, err := netip.ParseAddr(word); err == nil && a.IsGlobalUnicast() && a.Zone() == "" && len(out) < mostAddresses {
			out = append(out, a.Unmap())
		}
	}
	return out
}
