package podnetwork

import (
	"errors"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/kernel/rtnl/rtnltest"
)

// TestKernel checks that the bridge reaches the wanted state from three states: without a bridge,
// with the wanted bridge, and with a bridge for other ranges.
func TestKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	runtime.LockOSThread()
	_, other := dual()
	other[0] = netip.MustParsePrefix("10.244.9.0/24")
	spec, ranges := dual()
	if agent := New(spec, dirs.System(), nil, nil); agent.recall() != nil || len(agent.addrs) > 0 {
		t.Errorf("without a bridge the agent recalls %v", agent.addrs)
	}
	for _, want := range [][]netip.Prefix{ranges, ranges, other} {
		plan, err := NewPlan(spec, dirs.System(), want, 1500)
		if err != nil {
			t.Fatal(err)
		}
		err = ensureBridge(plan.Gateways, plan.MTU)
		if errors.Is(err, unix.EOPNOTSUPP) {
			t.Skip("the kernel of this machine has no bridges; the product's has, and `make kernel` runs the test there")
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := ensureRoutes(Bridge, plan.Routes, plan.Addresses()); err != nil {
			t.Fatal(err)
		}
		check(t, plan)
		// A process that starts now reads the addresses from the bridge, without the API server.
		agent := New(spec, dirs.System(), nil, nil)
		if err := agent.recall(); err != nil {
			t.Fatal(err)
		}
		if got, err := agent.Addresses(t.Context()); err != nil || !slices.Equal(got, plan.Addresses()) {
			t.Errorf("the agent recalls %v, %v; want %v", got, err, plan.Addresses())
		}
	}
}

// check checks that the bridge and its routes are those of the plan.
func check(t *testing.T, plan Plan) {
	t.Helper()
	link, err := netlink.LinkByName(Bridge)
	if err != nil {
		t.Fatal(err)
	}
	if link.Attrs().Flags&1 == 0 {
		t.Error("the bridge is down")
	}
	if link.Attrs().MTU != plan.MTU {
		t.Errorf("the bridge's MTU is %d, want %d", link.Attrs().MTU, plan.MTU)
	}
	have, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, a := range have {
		if !a.IP.IsLinkLocalUnicast() {
			found[a.IPNet.String()] = true
		}
	}
	for _, g := range plan.Gateways {
		if !found[g.String()] {
			t.Errorf("address %s is missing: %v", g, found)
		}
	}
	if len(found) != len(plan.Gateways) {
		t.Errorf("addresses %v, want only %v", found, plan.Gateways)
	}
	for _, r := range plan.Routes {
		destination, err := netlink.ParseIPNet(r.Masked().String())
		if err != nil {
			t.Fatal(err)
		}
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Dst: destination}, netlink.RT_FILTER_DST)
		if err != nil || len(routes) != 1 || routes[0].LinkIndex != link.Attrs().Index {
			t.Errorf("routes to %s: %v, %v; want one, to the bridge", r, routes, err)
		}
	}
}

// TestConfigureExternal checks that, with an external pod network, the cluster DNS has addresses on
// the machine, and Services have routes. The second run simulates a process that starts when both
// exist.
func TestConfigureExternal(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	runtime.LockOSThread()
	rtnltest.Veth(t, "eth0", "other")
	rtnltest.AddAddresses(t, "eth0", "192.0.2.1/24", "2001:db8::1/64")
	spec, _ := dual()
	spec.External.Network = true
	spec.Node.IPs = addresses("192.0.2.1", "2001:db8::1")
	want := addresses("192.0.0.8", "100::8")
	for range 2 {
		agent := New(spec, dirs.System(), nil, nil)
		err := agent.configureExternal()
		if errors.Is(err, unix.EOPNOTSUPP) {
			t.Skip("the kernel of this machine has no dummy links; the product's has, and `make kernel` runs the test there")
		}
		if err != nil {
			t.Fatal(err)
		}
		if got, err := agent.Addresses(t.Context()); err != nil || !slices.Equal(got, want) {
			t.Errorf("addresses %v, %v; want %v", got, err, want)
		}
		for i, a := range want {
			found, err := netlink.RouteGet(a.AsSlice())
			if err != nil || len(found) != 1 || found[0].Type != unix.RTN_LOCAL {
				t.Errorf("%s is no address of this machine: %v, %v", a, found, err)
			}
			service := spec.Network.ServiceCIDRs[i].Addr().Next()
			found, err = netlink.RouteGet(service.AsSlice())
			if err != nil || len(found) != 1 || !found[0].Src.Equal(spec.Node.IPs[i].AsSlice()) {
				t.Errorf("the route to Service %s: %v, %v; want one with the source address %s", service, found, err, spec.Node.IPs[i])
			}
		}
	}
}
