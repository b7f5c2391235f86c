package nodespec

import (
	"net/netip"
	"slices"
	"strings"
)

// AddressesAnnotation is the annotation with which a node publishes all addresses of its machine,
// separated by commas. The status of the Node has only the first address of each family.
const AddressesAnnotation = "network.orlop.dev/addresses"

// mostAddresses is the maximum number of addresses that a machine publishes. ReadPublished returns
// at most this number, because a kubelet can write an annotation with any number of addresses.
const mostAddresses = 64

// Published returns the value of the annotation for the addresses of a machine's links. It contains
// the addresses that other machines can reach, sorted, without duplicates. It omits the addresses
// in the prefixes `pods`, which are the addresses of pods and of the pod bridge.
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

// ReadPublished returns the addresses in the value of an annotation. It omits all entries but
// global unicast addresses.
func ReadPublished(text string) []netip.Addr {
	var out []netip.Addr
	for word := range strings.SplitSeq(text, ",") {
		if a, err := netip.ParseAddr(word); err == nil && a.IsGlobalUnicast() && a.Zone() == "" && len(out) < mostAddresses {
			out = append(out, a.Unmap())
		}
	}
	return out
}
