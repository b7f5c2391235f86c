//go:build linux

package network_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"

	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/network/dhcp6/dhcp6test"
	"github.com/orlop-os/orlop/machined/network/ra/ratest"
	"github.com/orlop-os/orlop/pkg/kernel/rtnl/rtnltest"
)

var (
	routerOne = netip.MustParseAddr("fe80::1")
	routerTwo = netip.MustParseAddr("fe80::2")
	resolver6 = netip.MustParseAddr("2001:db8::53")
)

// cable6 connects eth0 to sw0 in the namespace of another machine, as cable does. sw0 has the
// link-local addresses of two routers. They are usable immediately, because duplicate address
// detection is off in this namespace.
func cable6(t *testing.T) *rtnltest.Namespace {
	t.Helper()
	other := rtnltest.NewOther(t)
	other.NoDetection(t)
	rtnltest.Veth(t, "eth0", "sw0")
	other.MoveLink(t, "sw0")
	other.AddAddresses(t, "sw0", routerOne.String()+"/64", routerTwo.String()+"/64", "2001:db8::1/64")
	return other
}

func autoLink(name string) network.Config {
	return network.Config{Links: []network.LinkConfig{{Name: name, IPv6: network.LinkIPv6{AcceptRA: true, DHCP6: network.DHCP6Auto}}}}
}

// link returns the state of a link; the zero value if the link does not exist.
func link(s network.State, name string) network.LinkState {
	i := slices.IndexFunc(s.Links, func(l network.LinkState) bool { return l.Name == name })
	if i < 0 {
		return network.LinkState{}
	}
	return s.Links[i]
}

// TestAdvertisementKernel checks a network with router advertisements and without DHCPv6. The
// kernel configures addresses and a route. The machine uses the resolvers and search domains of two
// routers until a router withdraws them or they expire.
func TestAdvertisementKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	other := cable6(t)
	one := ratest.Plan{Source: routerOne, Lifetime: time.Hour, Prefix: netip.MustParsePrefix("2001:db8::/64"),
		Servers: []netip.Addr{resolver6}, Domains: []string{"lan.test"}, OptionLifetime: time.Hour}
	two := ratest.Plan{Source: routerTwo, Servers: []netip.Addr{netip.MustParseAddr("2001:db8::54")}, OptionLifetime: 8 * time.Second}
	router := ratest.Start(t, other, "sw0", one, two)
	s := launch(t, autoLink("eth0"))
	st := s.wait(t, slowTimeout, "with resolvers of both routers", func(st network.State) bool {
		return st.Converged && len(st.Servers) == 2 && len(st.Search) == 1
	})
	if seen := link(st, "eth0").Advertised.Routers; !slices.Equal(seen, []netip.Addr{routerOne, routerTwo}) {
		t.Errorf("the routers are %v", seen)
	}
	router.Set(one)
	s.wait(t, slowTimeout, "without the expired resolver", func(st network.State) bool {
		return slices.Equal(st.Servers, []netip.Addr{resolver6})
	})
	if got, want := read(t, s.files.ResolvConf), "nameserver 2001:db8::53\nsearch lan.test\n"; got != want {
		t.Errorf("resolv.conf is %q, want %q", got, want)
	}
	st = s.wait(t, slowTimeout, "with an address and a gateway", func(st network.State) bool { return len(st.Node) == 1 && len(st.Gateways()) == 1 })
	if g := st.Gateways()[0]; g.Via != routerOne || g.Link != "eth0" {
		t.Errorf("the gateway is %+v", g)
	}
	one.OptionLifetime = 0
	router.Advertise(t, one)
	s.wait(t, slowTimeout, "without the withdrawn values", func(st network.State) bool { return len(st.Servers) == 0 && len(st.Search) == 0 })
	if link(st, "eth0").DHCP6 != nil {
		t.Errorf("DHCPv6 runs although no router advertisement has the flag M or O: %+v", link(st, "eth0").DHCP6)
	}
}

// TestCarrierReturnKernel checks that the controller sends router solicitations after its restart,
// and when the link gets its carrier back. The kernel sends none in these cases.
func TestCarrierReturnKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	other := cable6(t)
	plan := ratest.Plan{Source: routerOne, Servers: []netip.Addr{resolver6}, OptionLifetime: time.Hour}
	router := ratest.Start(t, other, "sw0", plan)
	with := func(a netip.Addr) func(network.State) bool {
		return func(st network.State) bool { return slices.Equal(st.Servers, []netip.Addr{a}) }
	}
	s := launch(t, autoLink("eth0"))
	s.wait(t, slowTimeout, "with a resolver", with(resolver6))
	s = s.restart(t)
	s.wait(t, slowTimeout, "with a resolver after a restart", with(resolver6))
	other.SetUp(t, "sw0", false)
	s.wait(t, slowTimeout, "without carrier", func(st network.State) bool { return !link(st, "eth0").Carrier })
	old := plan
	old.OptionLifetime = 0
	plan.Servers = []netip.Addr{netip.MustParseAddr("2001:db8::99")}
	router.Set(old, plan)
	other.SetUp(t, "sw0", true)
	other.AddAddresses(t, "sw0", routerOne.String()+"/64")
	s.wait(t, slowTimeout, "with the new resolver", with(plan.Servers[0]))
}

// TestStatefulKernel checks a network with DHCPv6. The machine gets an address, which is usable
// after duplicate address detection, and all settings. After a restart of the controller, it has
// the same DUID and address. When a new configuration does not use DHCPv6 any more, the machine
// releases the lease.
func TestStatefulKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	other := cable6(t)
	ratest.Start(t, other, "sw0", ratest.Plan{Source: routerOne, Managed: true, Lifetime: time.Hour})
	server := dhcp6test.Start(t, other, "sw0", dhcp6test.Plan{
		Addresses: []netip.Addr{netip.MustParseAddr("2001:db8::5")}, Preferred: time.Hour, Valid: 2 * time.Hour,
		Options: []dhcpv6.Option{
			dhcpv6.OptDNS(resolver6.AsSlice()),
			&dhcpv6.OptionGeneric{OptionCode: dhcpv6.OptionDomainSearchList, OptionData: []byte("\x03lan\x04test\x00")},
			&dhcpv6.OptionGeneric{OptionCode: dhcpv6.OptionNTPServer, OptionData: append([]byte{0, 1, 0, 16}, resolver6.AsSlice()...)},
		}})
	s := launch(t, autoLink("eth0"))
	leased := func(st network.State) bool {
		return has("eth0", "2001:db8::5/128")(st) && slices.Equal(st.Node, []netip.Addr{netip.MustParseAddr("2001:db8::5")})
	}
	st := s.wait(t, slowTimeout, "leased", leased)
	if !slices.Equal(st.Servers, []netip.Addr{resolver6}) || !slices.Equal(st.Search, []string{"lan.test"}) || !slices.Equal(st.TimeServers, []string{"2001:db8::53"}) {
		t.Errorf("servers %v, search %v, time servers %v", st.Servers, st.Search, st.TimeServers)
	}
	if l := link(st, "eth0"); l.DHCP6 == nil || l.DHCP6.Requests != "addresses" || l.DHCP6.Phase != "bound" || !l.Advertised.Managed {
		t.Errorf("the link is %+v", l)
	}
	s = s.restart(t)
	s.wait(t, slowTimeout, "leased after a restart", leased)
	server.Wait(t, slowTimeout, func(seen []string) bool { return slices.Contains(seen, "CONFIRM 2001:db8::5") })
	if clients := server.Clients(); len(clients) != 1 || !strings.HasPrefix(clients[0], "00030001") {
		t.Errorf("the DUIDs of the clients are %q, want a single one", clients)
	}
	s.config.Set(network.Config{Links: []network.LinkConfig{{Name: "eth0", IPv6: network.LinkIPv6{AcceptRA: true}}}})
	s.wait(t, slowTimeout, "without the lease", hasNot("eth0", "2001:db8::5/128"))
	server.Wait(t, slowTimeout, func(seen []string) bool { return slices.Contains(seen, "RELEASE 2001:db8::5") })
}

// TestStatelessKernel checks a network with the flag O in router advertisements: DHCPv6 provides
// the settings, and the kernel configures the addresses.
func TestStatelessKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	other := cable6(t)
	router := ratest.Start(t, other, "sw0", ratest.Plan{Source: routerOne, Other: true, Lifetime: time.Hour, Prefix: netip.MustParsePrefix("2001:db8::/64")})
	server := dhcp6test.Start(t, other, "sw0", dhcp6test.Plan{Options: []dhcpv6.Option{dhcpv6.OptDNS(resolver6.AsSlice())}})
	s := launch(t, autoLink("eth0"))
	st := s.wait(t, slowTimeout, "with a resolver and an address", func(st network.State) bool { return len(st.Servers) == 1 && len(st.Node) == 1 })
	if d := link(st, "eth0").DHCP6; d == nil || d.Requests != "settings" || len(d.Lease.Addresses) != 0 {
		t.Errorf("DHCPv6 is %+v", d)
	}
	if seen := slices.Compact(server.Seen()); !slices.Equal(seen, []string{"INFORMATION-REQUEST"}) {
		t.Errorf("the server saw %q", seen)
	}
	// The router advertisement of a second router does not have the flag O. The flag of the first
	// router remains in effect.
	router.Advertise(t, ratest.Plan{Source: routerTwo, Servers: []netip.Addr{netip.MustParseAddr("2001:db8::54")}, OptionLifetime: time.Hour})
	st = s.wait(t, slowTimeout, "with two resolvers", func(st network.State) bool { return len(st.Servers) == 2 })
	if a := link(st, "eth0").Advertised; !a.Other || st.Servers[0] != resolver6 {
		t.Errorf("the state of router advertisements is %+v, the resolvers are %v", a, st.Servers)
	}
}

// TestDuplicateKernel checks a network in which another machine already has the first address that
// the DHCPv6 server offers. The machine declines this address, and gets the second address.
func TestDuplicateKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	other := cable6(t)
	other.AddAddresses(t, "sw0", "2001:db8::5/64")
	server := dhcp6test.Start(t, other, "sw0", dhcp6test.Plan{
		Addresses: []netip.Addr{netip.MustParseAddr("2001:db8::5"), netip.MustParseAddr("2001:db8::6")}, Preferred: time.Hour, Valid: time.Hour})
	cfg := autoLink("eth0")
	cfg.Links[0].IPv6.DHCP6 = network.DHCP6Stateful
	s := launch(t, cfg)
	st := s.wait(t, slowTimeout, "with the second address", func(st network.State) bool {
		return slices.Equal(st.Node, []netip.Addr{netip.MustParseAddr("2001:db8::6")})
	})
	if has("eth0", "2001:db8::5/128")(st) {
		t.Errorf("the link still has the duplicate address: %+v", st.Links)
	}
	server.Wait(t, slowTimeout, func(seen []string) bool { return slices.Contains(seen, "DECLINE 2001:db8::5") })
	if !slices.Contains(s.lines(), "link eth0: another machine has the address 2001:db8::5 of the DHCPv6 server") {
		t.Errorf("the log is %q", s.lines())
	}
}

// TestDelegationKernel checks a delegated prefix. The machine requests the prefix on eth0, adds an
// address of one of its subnets to eth1, and has an unreachable route for the unused subnets.
func TestDelegationKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	other := cable6(t)
	rtnltest.Veth(t, "eth1", "peer1")
	rtnltest.SetUp(t, "peer1", true)
	dhcp6test.Start(t, other, "sw0", dhcp6test.Plan{Prefix: netip.MustParsePrefix("2001:db8:100::/60"), Preferred: time.Hour, Valid: time.Hour})
	cfg := network.Config{Links: []network.LinkConfig{
		{Name: "eth0", IPv6: network.LinkIPv6{Prefix: &network.Delegation{Length: 56, Subnets: []network.Subnet{{Link: "eth1", Number: 0xa}, {Link: "eth1", Number: 16}}}}},
		{Name: "eth1"},
	}}
	s := launch(t, cfg)
	st := s.wait(t, slowTimeout, "with an address of the prefix", has("eth1", "2001:db8:100:a::1/64"))
	if want := (network.RouteState{To: netip.MustParsePrefix("2001:db8:100::/60"), Metric: 1024, Kind: "unreachable"}); !slices.Contains(st.Routes, want) {
		t.Errorf("the routes are %+v, want %+v", st.Routes, want)
	}
	if want := "link eth1: gets no address: the delegated prefix 2001:db8:100::/60 has no subnet 16"; !slices.Contains(st.Problems, want) {
		t.Errorf("the problems are %q, want %q", st.Problems, want)
	}
	if a := link(st, "eth1").Addresses; !slices.Contains(a, network.AddressState{Prefix: netip.MustParsePrefix("2001:db8:100:a::1/64"), Origin: "prefix"}) {
		t.Errorf("the addresses are %+v", a)
	}
	cfg.Links = []network.LinkConfig{{Name: "eth0"}, {Name: "eth1"}}
	s.config.Set(cfg)
	s.wait(t, slowTimeout, "without the prefix", func(st network.State) bool { return hasNot("eth1", "2001:db8:100:a::1/64")(st) && len(st.Routes) == 0 })
}
