package nodespec

import (
	"net/netip"
	"testing"

	"github.com/orlop-os/orlop/pkg/config"
)

func addresses(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}

// TestReserved checks that no Service can use the address of a machine, in any notation, and that
// an external IP must be in a configured range.
func TestReserved(t *testing.T) {
	spec := Spec{
		Node:          Node{IPs: addresses("10.0.0.5", "2001:db8::5")},
		ControlPlanes: addresses("10.0.0.5", "10.0.0.6"), VirtualAddresses: addresses("10.0.0.9"),
		Endpoint:   "https://203.0.113.1:6443",
		Kubernetes: config.Kubernetes{APIServer: config.APIServer{ExtraSANs: []string{"api.example.com", "203.0.113.2"}}},
		Network: Network{
			PodCIDRs:     []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
			ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")},
			ExternalIPs:  []Range{{netip.MustParseAddr("198.51.100.0"), netip.MustParseAddr("198.51.100.15")}},
		},
	}
	nodes := addresses("10.0.0.20", "2001:db8::20", "198.51.100.7")
	r := spec.Reserved()
	// any: Check permits the address. external: CheckExternal permits it, too.
	for text, want := range map[string]struct{ any, external bool }{
		"10.0.0.5": {}, "2001:db8::5": {}, "10.0.0.6": {}, "10.0.0.9": {}, "203.0.113.1": {}, "203.0.113.2": {true, false},
		"10.0.0.20": {}, "2001:db8::20": {}, "::ffff:10.0.0.20": {}, "::ffff:10.0.0.5": {},
		"10.244.3.4": {}, "10.96.0.1": {}, "127.0.0.1": {}, "::1": {}, "0.0.0.0": {}, "::": {}, "169.254.1.1": {}, "fe80::1": {}, "224.0.0.1": {}, "255.255.255.255": {},
		"::ffff:127.0.0.1": {}, "198.51.100.7": {}, "198.51.100.15": {true, true}, "::ffff:198.51.100.15": {true, true},
		"198.51.100.16": {true, false}, "10.0.0.21": {true, false}, "2001:db8::21": {true, false},
	} {
		a := netip.MustParseAddr(text)
		if why := r.Check(a, nodes); (why == "") != want.any {
			t.Errorf("%s: %q", text, why)
		}
		if why := r.CheckExternal(a, nodes); (why == "") != want.external {
			t.Errorf("%s as an external address: %q", text, why)
		}
	}
}
