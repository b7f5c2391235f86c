package apivip

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestStaleFlows checks that the holder of the address deletes only flows to other API servers, and
// that another machine deletes only flows to its own API server.
func TestStaleFlows(t *testing.T) {
	own, address := netip.MustParseAddr("10.0.0.11"), netip.MustParseAddr("10.0.0.9")
	flow := func(protocol uint8, to string, port uint16, from string) *netlink.ConntrackFlow {
		return &netlink.ConntrackFlow{
			Forward: netlink.IPTuple{Protocol: protocol, SrcIP: net.ParseIP("10.0.0.1"), DstIP: net.ParseIP(to), DstPort: port},
			Reverse: netlink.IPTuple{Protocol: protocol, SrcIP: net.ParseIP(from), DstIP: net.ParseIP("10.0.0.1")},
		}
	}
	for what, c := range map[string]struct {
		flow            *netlink.ConntrackFlow
		here, elsewhere bool
	}{
		"to the own API server": {flow(unix.IPPROTO_TCP, "10.0.0.9", 6443, "10.0.0.11"), false, true},
		"to another API server": {flow(unix.IPPROTO_TCP, "10.0.0.9", 6443, "10.0.0.9"), true, false},
		"to another address":    {flow(unix.IPPROTO_TCP, "10.0.0.8", 6443, "10.0.0.11"), false, false},
		"to another port":       {flow(unix.IPPROTO_TCP, "10.0.0.9", 50000, "10.0.0.9"), false, false},
		"UDP":                   {flow(unix.IPPROTO_UDP, "10.0.0.9", 6443, "10.0.0.9"), false, false},
	} {
		for here, want := range map[bool]bool{true: c.here, false: c.elsewhere} {
			if got := (staleFlows{redirect{address, own}, here}).MatchConntrackFlow(c.flow); got != want {
				t.Errorf("%s, holder %t: the flow is stale: %t", what, here, got)
			}
		}
	}
}
