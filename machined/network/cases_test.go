package network

import (
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/golden"

	"github.com/orlop-os/orlop/machined/network/dhcp"
	"github.com/orlop-os/orlop/machined/network/dhcp6"
	"github.com/orlop-os/orlop/machined/network/ra"
)

// stage is a step of a test case: a configuration with leases and router advertisements.
type stage struct {
	says   string // the description of the stage in the golden file
	config Config
	leases map[string]*dhcp.Lease // the leases of DHCPv4, by name of the link
	// The leases of DHCPv6 and the values of router advertisements, by name of the link.
	leases6 map[string]*dhcp6.Lease
	routers map[string]ra.Info
	// former has the original MTUs, as the controller records them. The tests set it; all stages of
	// a case share it.
	former formerMTUs
}

// testCase is a machine with links, and the stages that a test applies to the machine in order. The
// file testdata/<name>.txt contains the operations of each stage.
type testCase struct {
	name  string
	links []Link
	// hardware is true if the case needs links without a kind, such as real network interfaces. The
	// case then runs only on the fake, because a test cannot create these links in a namespace.
	hardware bool
	needs    []string // kinds of links that the kernel must have
	stages   []stage
}

func veth(name string) Link { return Link{Name: name, Ethernet: true, Kind: "veth", MTU: 1500} }

func card(name, mac string) Link {
	return Link{Name: name, Ethernet: true, MAC: mac, MTU: 1500, Device: Device{Driver: "virtio_net"}}
}

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func route(to, via string, metric uint32) RouteConfig {
	r := RouteConfig{To: netip.MustParsePrefix(to), Metric: metric}
	if via != "" {
		r.Via = netip.MustParseAddr(via)
	}
	return r
}

func lease(address, router string) *dhcp.Lease {
	l := &dhcp.Lease{Address: netip.MustParsePrefix(address), Server: netip.MustParseAddr("192.0.2.1"), Duration: time.Hour}
	if router != "" {
		l.Routes = []dhcp.Route{{To: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr(router)}}
	}
	return l
}

func mac(s string) net.HardwareAddr {
	m, err := net.ParseMAC(s)
	if err != nil {
		panic(err)
	}
	return m
}

// cases returns all cases of the golden files.
func cases() []testCase {
	full := lease("192.0.2.55/24", "192.0.2.1")
	full.DNS, full.Domain, full.MTU, full.Hostname = []netip.Addr{netip.MustParseAddr("192.0.2.53")}, "lan.test", 1400, "leased"
	cloud := lease("10.128.0.7/32", "")
	cloud.Routes = []dhcp.Route{
		{To: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("10.128.0.1")},
		{To: netip.MustParsePrefix("10.128.0.1/32")},
	}
	static := Config{
		Hostname: "anchor.example.test", DNS: []netip.Addr{netip.MustParseAddr("10.0.0.53"), netip.MustParseAddr("2001:db8::53")},
		Search: []string{"example.test"},
		Links: []LinkConfig{{Name: "eth0", MTU: 1450, Addresses: prefixes("10.0.0.5/24", "2001:db8::5/64"),
			Routes: []RouteConfig{route("0.0.0.0/0", "10.0.0.1", 0), route("::/0", "2001:db8::1", 0), route("10.9.0.0/16", "10.0.0.9", 50)}}},
	}
	eth0 := func(lc LinkConfig) Config { lc.Name = "eth0"; return Config{Links: []LinkConfig{lc}} }
	dhcp0 := eth0(LinkConfig{DHCP4: true})
	return append(append(virtualCases(), casesIPv6()...), []testCase{
		{name: "first-boot", hardware: true,
			links: []Link{card("eth0", "02:00:00:00:00:01"), card("eth1", "02:00:00:00:00:02"), {Name: "wg0", Kind: "wireguard"}, veth("veth1")},
			stages: []stage{
				{says: "no configuration: every network card is set up, other links are left alone"},
				{says: "both get a lease: two default routes, the first card's wins",
					leases: map[string]*dhcp.Lease{"eth0": full, "eth1": lease("198.51.100.9/24", "198.51.100.1")}},
				{says: "a configuration that names the first card by its MAC: the second one's lease goes",
					config: Config{Links: []LinkConfig{{MAC: mac("02:00:00:00:00:01"), DHCP4: true}}}, leases: map[string]*dhcp.Lease{"eth0": full}},
			}},
		{name: "static", links: []Link{veth("eth0")}, stages: []stage{
			{says: "a static configuration of both families", config: static},
			{says: "the same again: nothing to do", config: static},
			{says: "another address in the same subnet, and no routes", config: eth0(LinkConfig{Addresses: prefixes("10.0.0.6/24")})},
			{says: "nothing on the link", config: eth0(LinkConfig{})},
		}},
		{name: "lease", links: []Link{veth("eth0")}, stages: []stage{
			{says: "waiting for a server", config: dhcp0},
			{says: "a lease with everything", config: dhcp0, leases: map[string]*dhcp.Lease{"eth0": full}},
			{says: "renewed with another address: the new one comes before the old one goes", config: dhcp0,
				leases: map[string]*dhcp.Lease{"eth0": lease("192.0.2.77/24", "192.0.2.1")}},
			{says: "the lease has ended", config: dhcp0},
			{says: "a cloud's lease: a gateway outside of the subnet, on a route of its own (option 121)", config: dhcp0,
				leases: map[string]*dhcp.Lease{"eth0": cloud}},
		}},
		{name: "prefix-length", links: []Link{veth("eth0")}, stages: []stage{
			{says: "two addresses", config: eth0(LinkConfig{Addresses: prefixes("10.0.0.5/24", "2001:db8::5/64")})},
			{says: "the same with other lengths: IPv6 has to go before it can come", config: eth0(LinkConfig{Addresses: prefixes("10.0.0.5/16", "2001:db8::5/48")})},
		}},
		{name: "secondaries", links: []Link{veth("eth0")}, stages: []stage{
			{says: "three addresses of one subnet", config: eth0(LinkConfig{Addresses: prefixes("10.0.0.1/24", "10.0.0.2/24", "10.0.0.3/24")})},
			{says: "the first goes, and must not take the others", config: eth0(LinkConfig{Addresses: prefixes("10.0.0.2/24", "10.0.0.3/24")})},
		}},
		{name: "no-address", links: []Link{veth("eth0")}, stages: []stage{
			{says: "an address and a route on the link", config: eth0(LinkConfig{Addresses: prefixes("10.0.0.1/24"), Routes: []RouteConfig{route("10.7.0.0/16", "", 0)}})},
			{says: "the last address goes, the route stays: the kernel drops it, so it is added again",
				config: eth0(LinkConfig{Routes: []RouteConfig{route("10.7.0.0/16", "", 0)}})},
		}},
		{name: "gateway", links: []Link{veth("eth0"), veth("eth1")}, stages: []stage{
			{says: "a default route", config: eth0(LinkConfig{Addresses: prefixes("10.0.0.1/24"), Routes: []RouteConfig{route("0.0.0.0/0", "10.0.0.254", 9)}})},
			{says: "by another gateway", config: eth0(LinkConfig{Addresses: prefixes("10.0.0.1/24"), Routes: []RouteConfig{route("0.0.0.0/0", "10.0.0.253", 9)}})},
			{says: "by another link; the old one keeps its address", config: Config{Links: []LinkConfig{{Name: "eth0", Addresses: prefixes("10.0.0.1/24")},
				{Name: "eth1", Addresses: prefixes("10.1.0.1/24"), Routes: []RouteConfig{route("0.0.0.0/0", "10.1.0.254", 9)}}}}},
			{says: "two links want the same route with the same metric: the first one has it", config: Config{Links: []LinkConfig{
				{Name: "eth0", Addresses: prefixes("10.0.0.1/24"), Routes: []RouteConfig{route("0.0.0.0/0", "10.0.0.254", 9)}},
				{Name: "eth1", Addresses: prefixes("10.1.0.1/24"), Routes: []RouteConfig{route("0.0.0.0/0", "10.1.0.254", 9)}}}}},
			{says: "a gateway that no address covers", config: eth0(LinkConfig{Addresses: prefixes("10.0.0.1/32"), Routes: []RouteConfig{route("0.0.0.0/0", "10.5.0.1", 0)}})},
		}},
		{name: "off-link", links: []Link{veth("eth0")}, stages: []stage{
			{says: "an address without a network, and a gateway behind a route of its own, named after it", config: eth0(LinkConfig{Addresses: prefixes("203.0.113.7/32"),
				Routes: []RouteConfig{route("0.0.0.0/0", "172.31.1.1", 0), route("172.31.1.1/32", "", 0)}})},
			{says: "and of IPv6", config: eth0(LinkConfig{Addresses: prefixes("203.0.113.7/32", "2001:db8::7/128"),
				Routes: []RouteConfig{route("0.0.0.0/0", "172.31.1.1", 0), route("172.31.1.1/32", "", 0), route("::/0", "2001:db8:1::1", 0), route("2001:db8:1::1/128", "", 0)}})},
			{says: "a gateway behind a route to more than itself", config: eth0(LinkConfig{Addresses: prefixes("203.0.113.7/32"),
				Routes: []RouteConfig{route("172.31.0.0/16", "", 0), route("0.0.0.0/0", "172.31.1.1", 0)}})},
			{says: "a network of its own again", config: eth0(LinkConfig{Addresses: prefixes("172.31.0.7/16"), Routes: []RouteConfig{route("0.0.0.0/0", "172.31.1.1", 0)}})},
		}},
	}...)
}

// run applies the stages of a case to a machine, and returns the list of the operations. It checks
// after each stage that no operation remains.
func (c testCase) run(t *testing.T, m machine) string {
	t.Helper()
	var story strings.Builder
	former := formerMTUs{}
	for _, s := range c.stages {
		s.former = former
		ops := settle(t, m, s)
		story.WriteString("# " + s.says + "\n")
		for _, o := range ops {
			story.WriteString(o.String() + "\n")
			if err := m.Do(o); err != nil {
				t.Fatalf("%s: %s: %v", c.name, s.says, err)
			}
		}
		story.WriteString("\n")
		if left := settle(t, m, s); len(left) > 0 {
			t.Errorf("%s: %s: these operations remain: %v", c.name, s.says, left)
		}
	}
	return story.String()
}

// settle returns the operations that the controller would perform for a stage, and records the
// original MTUs and hardware settings as the controller does. It does not perform the operations.
func settle(t *testing.T, m machine, s stage) []Op {
	t.Helper()
	have, err := m.Read(s.config)
	if err != nil {
		t.Fatal(err)
	}
	ops := Diff(have, Plan(s.config, Facts{Links: have.Links, Leases: s.leases, Leases6: s.leases6, Routers: s.routers, MTUs: s.former, Hardware: m.remembered().formerHardware()}))
	s.former.record(have.Links, ops)
	m.remembered().recordHardware(have.Links, ops)
	return ops
}

func (c testCase) golden() string { return filepath.Join("testdata", c.name+".txt") }

// TestGolden runs all cases on the fake machine, and compares the operations with the golden files.
func TestGolden(t *testing.T) {
	for _, c := range cases() {
		t.Run(c.name, func(t *testing.T) {
			got := c.run(t, newFake(c.links...))
			golden.Assert(t, got, c.name+".txt")
		})
	}
}
