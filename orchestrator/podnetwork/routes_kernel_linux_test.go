package podnetwork

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/orlop-os/orlop/pkg/kernel/rtnl/rtnltest"
)

// TestForeignRoutes checks a foreign route to the same network with the same metric, which is older
// or newer than our route. Our route is created only once, changed and removed, and the foreign
// route stays unchanged.
func TestForeignRoutes(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	runtime.LockOSThread()
	rtnltest.Veth(t, "own0", "own1")
	rtnltest.Veth(t, "far0", "far1")
	rtnltest.AddAddresses(t, "own0", "192.0.2.1/24", "2001:db8:1::1/64")
	rtnltest.AddAddresses(t, "far0", "198.51.100.1/24", "2001:db8:2::1/64")
	for _, name := range []string{"own0", "own1", "far0", "far1"} {
		rtnltest.SetUp(t, name, true)
	}
	index := func(name string) int {
		link, err := netlink.LinkByName(name)
		must(t, err)
		return link.Attrs().Index
	}
	for _, c := range []struct {
		network       string
		first, second string // next hops of ours
		foreign       string
		sender        string
		metric        int // the metric of the foreign route, which is the kernel's default
	}{
		{"10.244.7.0/24", "192.0.2.8", "192.0.2.9", "198.51.100.8", "192.0.2.1", 0},
		{"fd00:244:7::/64", "2001:db8:1::8", "2001:db8:1::9", "2001:db8:2::8", "2001:db8:1::1", 1024},
	} {
		for _, order := range []string{"theirs first", "ours first"} {
			t.Run(fmt.Sprintf("%s, %s", c.network, order), func(t *testing.T) {
				to := ipnet(netip.MustParsePrefix(c.network))
				theirs := &netlink.Route{Dst: to, Gw: netip.MustParseAddr(c.foreign).AsSlice(), LinkIndex: index("far0"), Protocol: 99, Priority: c.metric}
				ours := func(via string) *netlink.Route {
					return &netlink.Route{Dst: to, Gw: netip.MustParseAddr(via).AsSlice(), LinkIndex: index("own0"), Protocol: protocol}
				}
				if order == "theirs first" {
					must(t, netlink.RouteAdd(theirs))
					must(t, putRoute(ours(c.first)))
				} else {
					must(t, putRoute(ours(c.first)))
					must(t, netlink.RouteAppend(theirs))
				}
				// hops returns the next hops of all routes of a protocol to the network, including
				// those of routes that the kernel has merged.
				hops := func(of netlink.RouteProtocol) (out []string) {
					t.Helper()
					have, err := routesTo(&netlink.Route{Dst: to, Protocol: of})
					must(t, err)
					for _, r := range have {
						if r.Gw != nil {
							out = append(out, r.Gw.String())
						}
						for _, n := range r.MultiPath {
							out = append(out, n.Gw.String())
						}
					}
					slices.Sort(out)
					return out
				}
				all := func(what string, want ...string) {
					t.Helper()
					if got := append(hops(protocol), hops(99)...); !slices.Equal(got, append(want, c.foreign)) {
						t.Errorf("%s: %q, want %q and theirs", what, got, want)
					}
				}
				all("made", c.first)
				for range 3 {
					must(t, putRoute(ours(c.first)))
					all("made again", c.first)
				}
				for range 2 {
					must(t, putRoute(ours(c.second)))
					all("changed", c.second)
				}
				// With the same next hop and a source address, there is a single route, which has
				// the source address.
				sender := ours(c.second)
				sender.Src = netip.MustParseAddr(c.sender).AsSlice()
				must(t, putRoute(sender))
				all("with a sender", c.second)
				if have, err := routesTo(sender); err != nil || len(have) != 1 || !have[0].Src.Equal(sender.Src) {
					t.Errorf("with a sender: %v, %v", have, err)
				}
				must(t, putRoute(ours(c.second)))
				all("without it again", c.second)
				must(t, kernel{}.removeRoute(Route{To: netip.MustParsePrefix(c.network), Via: netip.MustParseAddr(c.first)}, nil))
				all("another one removed", c.second)
				must(t, kernel{}.removeRoute(Route{To: netip.MustParsePrefix(c.network), Via: netip.MustParseAddr(c.second)}, nil))
				all("removed")
				must(t, netlink.RouteDel(theirs))
			})
		}
	}
}
