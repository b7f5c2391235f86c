package network

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/machined/network/dhcp"
	"github.com/orlop-os/orlop/machined/network/dhcp6"
	"github.com/orlop-os/orlop/machined/network/ra"
)

// lease6 returns a DHCPv6 lease with an address and a prefix. If one of them is "", the lease does
// not have it.
func lease6(address, prefix string) *dhcp6.Lease {
	l := &dhcp6.Lease{Server: "0003"}
	if address != "" {
		l.Addresses = []dhcp6.Address{{Addr: netip.MustParseAddr(address), Preferred: time.Hour, Valid: time.Hour}}
	}
	if prefix != "" {
		l.Prefixes = []dhcp6.Prefix{{Prefix: netip.MustParsePrefix(prefix), Preferred: time.Hour, Valid: time.Hour}}
	}
	return l
}

// casesIPv6 returns the cases of the golden files with automatic IPv6 configuration.
func casesIPv6() []testCase {
	full := lease6("2001:db8::5", "")
	full.DNS, full.Search = []netip.Addr{netip.MustParseAddr("2001:db8::53")}, []string{"lan.test"}
	advertised := map[string]ra.Info{"eth0": {Servers: []netip.Addr{netip.MustParseAddr("2001:db8::54"), netip.MustParseAddr("2001:db8::53")}, Search: []string{"ra.test"}}}
	auto := Config{Links: []LinkConfig{{Name: "eth0", IPv6: LinkIPv6{AcceptRA: true, DHCP6: DHCP6Stateful}}, {Name: "eth1"}}}
	delegating := Config{Links: []LinkConfig{
		{Name: "eth0", IPv6: LinkIPv6{DHCP6: DHCP6Stateful, Prefix: &Delegation{Length: 56, Subnets: []Subnet{{"eth1", 0}, {"eth1", 0xab}}}}}, {Name: "eth1"}}}
	leased := func(l *dhcp6.Lease) map[string]*dhcp6.Lease { return map[string]*dhcp6.Lease{"eth0": l} }
	return []testCase{
		{name: "ipv6", links: []Link{veth("eth0"), veth("eth1")}, stages: []stage{
			{says: "router advertisements with resolvers; no DHCPv6 server answers yet", config: auto, routers: advertised},
			{says: "a lease: its resolvers come first", config: auto, routers: advertised, leases6: leased(full)},
			{says: "another address", config: auto, leases6: leased(lease6("2001:db8::6", ""))},
			{says: "a delegated prefix: a subnet for each entry, the rest is unreachable", config: delegating, leases6: leased(lease6("2001:db8::6", "2001:db8:100::/56"))},
			{says: "a prefix with a single subnet", config: delegating, leases6: leased(lease6("", "2001:db8:200::/64"))},
			{says: "neither is used any more", config: Config{Links: []LinkConfig{{Name: "eth0"}, {Name: "eth1"}}}, routers: advertised, leases6: leased(full)},
		}},
	}
}

// TestMode checks what a link requests by DHCPv6, for its configuration and the flags M and O of
// router advertisements; "" for no DHCPv6.
func TestMode(t *testing.T) {
	prefix := &Delegation{Length: 60}
	m, o := RouterFlags{Managed: true}, RouterFlags{Other: true}
	for _, test := range []struct {
		config LinkIPv6
		flags  RouterFlags
		want   string
	}{
		{LinkIPv6{}, m, ""},
		{LinkIPv6{AcceptRA: true}, m, ""},
		{LinkIPv6{DHCP6: DHCP6Auto}, RouterFlags{}, ""},
		{LinkIPv6{DHCP6: DHCP6Auto}, m, "addresses"},
		{LinkIPv6{DHCP6: DHCP6Auto}, o, "settings"},
		{LinkIPv6{DHCP6: DHCP6Auto}, RouterFlags{Managed: true, Other: true}, "addresses"},
		{LinkIPv6{DHCP6: DHCP6Stateless}, m, "settings"},
		{LinkIPv6{DHCP6: DHCP6Stateful}, RouterFlags{}, "addresses"},
		{LinkIPv6{Prefix: prefix}, RouterFlags{}, "prefix"},
		{LinkIPv6{DHCP6: DHCP6Auto, Prefix: prefix}, o, "prefix"},
		{LinkIPv6{DHCP6: DHCP6Auto, Prefix: prefix}, m, "addresses and prefix"},
	} {
		got := ""
		if mode := test.config.mode(Link{Router: test.flags}); mode != nil {
			got = requests(*mode)
		}
		if got != test.want {
			t.Errorf("%+v with %+v: %q, want %q", test.config, test.flags, got, test.want)
		}
	}
}

// TestSubnetOf checks the /64 subnet with a number in a prefix; "" if the prefix has no such
// subnet.
func TestSubnetOf(t *testing.T) {
	for _, test := range []struct {
		prefix string
		n      uint64
		want   string
	}{
		{"2001:db8::/56", 0, "2001:db8::/64"},
		{"2001:db8::/56", 255, "2001:db8:0:ff::/64"},
		{"2001:db8::/56", 256, ""},
		{"2001:db8::/48", 0xabcd, "2001:db8:0:abcd::/64"},
		{"2001:db8:1:2::/64", 0, "2001:db8:1:2::/64"},
		{"2001:db8:1:2::/64", 1, ""},
		{"2001:db8:1:2::/65", 0, ""},
	} {
		got, ok := subnetOf(netip.MustParsePrefix(test.prefix), test.n)
		if ok != (test.want != "") || ok && got.String() != test.want {
			t.Errorf("subnet %d of %s: %v, %v; want %q", test.n, test.prefix, got, ok, test.want)
		}
	}
}

// TestSettingsOrder checks the order of resolvers, search domains and time servers: DHCPv4, DHCPv6,
// router advertisements. Configured resolvers and domains replace all of them.
func TestSettingsOrder(t *testing.T) {
	v4 := lease("192.0.2.5/24", "")
	v4.DNS, v4.Domain, v4.NTP = []netip.Addr{netip.MustParseAddr("192.0.2.53")}, "four.test", []netip.Addr{netip.MustParseAddr("192.0.2.123")}
	v6 := lease6("2001:db8::5", "")
	v6.DNS, v6.Search, v6.NTP = []netip.Addr{netip.MustParseAddr("2001:db8::53")}, []string{"six.test"}, []string{"time.test"}
	f := Facts{Links: newFake(veth("eth0")).have.Links, Leases: map[string]*dhcp.Lease{"eth0": v4}, Leases6: map[string]*dhcp6.Lease{"eth0": v6},
		Routers: map[string]ra.Info{"eth0": {Servers: []netip.Addr{netip.MustParseAddr("2001:db8::54")}, Search: []string{"ra.test"}}}}
	c := Config{Links: []LinkConfig{{Name: "eth0", DHCP4: true, IPv6: LinkIPv6{AcceptRA: true, DHCP6: DHCP6Stateful}}}}
	w := Plan(c, f)
	if want := "options timeout:2\nnameserver 192.0.2.53\nnameserver 2001:db8::53\nnameserver 2001:db8::54\nsearch four.test six.test ra.test\n"; w.Files.ResolvConf != want {
		t.Errorf("resolv.conf is %q, want %q", w.Files.ResolvConf, want)
	}
	c.Clocks = []string{"ptp:hyperv"}
	if got := planTimeServers(c, f, w.Links); !slices.Equal(got, []string{"ptp:hyperv", "192.0.2.123", "time.test"}) {
		t.Errorf("the time servers are %q", got)
	}
	c.DNS, c.Search = []netip.Addr{netip.MustParseAddr("10.0.0.53")}, []string{"own.test"}
	if got := Plan(c, f).Files.ResolvConf; got != "nameserver 10.0.0.53\nsearch own.test\n" {
		t.Errorf("resolv.conf with a configuration is %q", got)
	}
}

// TestDescribe6 checks the published state and the problems of a link with DHCPv6.
func TestDescribe6(t *testing.T) {
	l := veth("eth0")
	l.Index, l.Up, l.Carrier, l.Router = 2, true, true, RouterFlags{Managed: true}
	now := time.Date(2026, 5, 1, 0, 0, 10, 0, time.UTC)
	o := observation{config: Config{Links: []LinkConfig{{Name: "eth0", IPv6: LinkIPv6{AcceptRA: true, DHCP6: DHCP6Auto}}}},
		have: Have{Links: []Link{l}}, six: observation6{
			routers:  map[string]ra.Info{"eth0": {Servers: []netip.Addr{netip.MustParseAddr("2001:db8::54")}}},
			clients:  map[int]dhcp6.Status{2: {Mode: dhcp6.Mode{Addresses: true}, Phase: dhcp6.Soliciting, Attempt: 4, Since: now.Add(-7 * time.Second)}},
			problems: map[int]string{2: "an option has a wrong length"},
		}}
	s := describe(o, now)
	want := AdvertisedState{RouterFlags: RouterFlags{Managed: true}, Info: o.six.routers["eth0"], Problem: "an option has a wrong length"}
	if got := s.Links[0].Advertised; got == nil || !reflect.DeepEqual(*got, want) {
		t.Errorf("advertised: %+v, want %+v", got, want)
	}
	if got := s.Links[0].DHCP6; got == nil || !reflect.DeepEqual(*got, DHCP6State{Requests: "addresses", Phase: "soliciting", Attempts: 4}) {
		t.Errorf("DHCPv6: %+v", got)
	}
	if want := "link eth0: no answer to a DHCPv6 request for addresses after 7s"; !slices.Contains(s.Problems, want) {
		t.Errorf("problems %q, want %q", s.Problems, want)
	}
	own := Address{Link: "eth0", Index: 2, Prefix: netip.MustParsePrefix("2001:db8::5/128")}
	o.have.Addresses, o.have.Unfit = []Address{own}, map[Address]string{own: "tentative"}
	o.six.leases = map[string]*dhcp6.Lease{"eth0": lease6("2001:db8::5", "")}
	o.six.clients[2] = dhcp6.Status{Phase: dhcp6.Bound, Lease: o.six.leases["eth0"]}
	s = describe(o, now)
	if got := s.Links[0].Addresses; !slices.Equal(got, []AddressState{{own.Prefix, "dhcp", "tentative"}}) || len(s.Node) != 0 {
		t.Errorf("the addresses of the link are %+v, those of the node %v", got, s.Node)
	}
	for _, p := range s.Problems {
		if strings.Contains(p, "DHCPv6") {
			t.Errorf("a problem although the client has a lease: %q", p)
		}
	}
	o.have.Unfit = nil
	if s = describe(o, now); !slices.Equal(s.Node, []netip.Addr{own.Prefix.Addr()}) {
		t.Errorf("the addresses of the node are %v", s.Node)
	}
}

// TestLeases6 checks the storage of a DHCPv6 lease and of the DUID.
func TestLeases6(t *testing.T) {
	dir := LeaseDir(t.TempDir())
	l := lease6("2001:db8::5", "2001:db8:100::/56")
	l.Acquired, l.NTP = time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC), []string{"time.test"}
	if err := dir.Save6("02:00:00:00:00:01", l); err != nil {
		t.Fatal(err)
	}
	if got, err := dir.Load6("02:00:00:00:00:01"); err != nil || !reflect.DeepEqual(got, l) {
		t.Errorf("the stored lease: %+v, %v", got, err)
	}
	if got, err := dir.Load("02:00:00:00:00:01"); err != nil || got != nil {
		t.Errorf("the stored lease of DHCPv4, which does not exist: %+v, %v", got, err)
	}
	if err := dir.Save6("02:00:00:00:00:01", nil); err != nil {
		t.Fatal(err)
	}
	if got, err := dir.Load6("02:00:00:00:00:01"); err != nil || got != nil {
		t.Errorf("after the removal of the lease: %+v, %v", got, err)
	}
	if id, err := dir.DUID(); err != nil || id != nil {
		t.Errorf("the DUID before it is stored: %x, %v", id, err)
	}
	cards := []Link{veth("veth0"), card("eth1", "02:00:00:00:00:07"), card("eth0", "02:00:00:00:00:03")}
	id := hardwareDUID(cards[1], cards)
	if want := dhcp6.DUID(mac("02:00:00:00:00:03")); !slices.Equal(id, want) {
		t.Errorf("the DUID of the hardware is %x, want %x", id, want)
	}
	if err := dir.SaveDUID(id); err != nil {
		t.Fatal(err)
	}
	if got, err := dir.DUID(); err != nil || !slices.Equal(got, id) {
		t.Errorf("the stored DUID: %x, %v; want %x", got, err, id)
	}
	if err := writeFile(string(dir)+"/"+duidFile, "00"); err != nil {
		t.Fatal(err)
	}
	if got, err := dir.DUID(); err == nil || got != nil {
		t.Errorf("a stored DUID that is too short: %x, %v", got, err)
	}
}
