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

// TestForeignRoutes checks that the component can set, change and remove its route (our route)
// although another program has a route to the same network with the same metric (the foreign
// route). The foreign route is older or newer than our route, and must not change.
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
		first, second string // next hops of our route
		foreign       string // next hop of the foreign route
		sender        string // source address of our route
		metric        int    // the metric of the foreign route, which is the kernel's default
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
						t.Errorf("%s: next hops %q, want %q and that of the foreign route", what, got, want)
					}
				}
				all("after the first putRoute", c.first)
				for range 3 {
					must(t, putRoute(ours(c.first)))
					all("after a second putRoute", c.first)
				}
				for range 2 {
					must(t, putRoute(ours(c.second)))
					all("after a change of the next hop", c.second)
				}
				// With the same next hop and a source address, there is a single route, which has
				// the source address.
				sender := ours(c.second)
				sender.Src = netip.MustParseAddr(c.sender).AsSlice()
				must(t, putRoute(sender))
				all("with a source address", c.second)
				if have, err := routesTo(sender); err != nil || len(have) != 1 || !have[0].Src.Equal(sender.Src) {
					t.Errorf("with a source address: %v, %v", have, err)
				}
				must(t, putRoute(ours(c.second)))
				all("without the source address", c.second)
				must(t, kernel{}.removeRoute(Route{To: netip.MustParsePrefix(c.network), Via: netip.MustParseAddr(c.first)}, nil))
				all("after the removal of a route with another next hop", c.second)
				must(t, kernel{}.removeRoute(Route{To: netip.MustParsePrefix(c.network), Via: netip.MustParseAddr(c.second)}, nil))
				all("after the removal of our route")
				must(t, netlink.RouteDel(theirs))
			})
		}
	}
}
