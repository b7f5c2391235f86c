package network

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/machined/network/dhcp"
)

// TestStub checks that Config.Stub, if it is set, is the only resolver in resolv.conf, and that the
// State shows the configured resolvers nevertheless.
func TestStub(t *testing.T) {
	at := netip.MustParseAddr
	c := Config{DNS: []netip.Addr{at("192.0.2.53"), at("192.0.2.54")}, Search: []string{"example.test"}, Stub: at("127.0.0.53")}
	if got, want := planFiles(c, Facts{}, Want{}).ResolvConf, "nameserver 127.0.0.53\nsearch example.test\n"; got != want {
		t.Errorf("with a stub, resolv.conf is %q; want %q", got, want)
	}
	if got := describe(observation{config: c}, time.Now()).Servers; !slices.Equal(got, c.DNS) {
		t.Errorf("the State shows the resolvers %v", got)
	}
	c.Stub = netip.Addr{}
	if got, want := planFiles(c, Facts{}, Want{}).ResolvConf, "options timeout:2\nnameserver 192.0.2.53\nnameserver 192.0.2.54\nsearch example.test\n"; got != want {
		t.Errorf("without a stub, resolv.conf is %q; want %q", got, want)
	}
}

func TestProblems(t *testing.T) {
	now := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	nic := card("eth0", "02:00:00:00:00:01")
	nic.Index = 2
	ready := nic
	ready.Up, ready.Carrier = true, true
	pulled := nic
	pulled.Up = true
	bond, member := pulled, ready
	bond.Name, bond.Index, bond.Kind, member.Master = "bond0", 3, kindBond, "bond0"
	searching := func(since time.Duration, phase dhcp.Phase, problem string) map[int]dhcp.Status {
		return map[int]dhcp.Status{2: {Phase: phase, Attempt: 3, Since: now.Add(-since), Problem: problem}}
	}
	for _, c := range []struct {
		name    string
		config  Config
		links   []Link
		clients map[int]dhcp.Status
		failed  []string
		want    []string
	}{
		{name: "no network card", links: []Link{veth("veth1")}, want: []string{"no Ethernet link: the machine has no supported network interface"}},
		{name: "no cable", links: []Link{pulled}, want: []string{"link eth0: no carrier: is the cable connected?"}},
		{name: "a bond without a partner", links: []Link{bond, member}, config: Config{Links: []LinkConfig{{Name: "bond0"}}},
			want: []string{"link bond0: no carrier: its members have one, but none is in use: check LACP on the ports of the switch and full duplex (802.3ad), the ARP targets, or minLinks"}},
		{name: "a link that is not up yet", links: []Link{nic}},
		{name: "a configured link that does not exist", links: []Link{ready}, config: Config{Links: []LinkConfig{{Name: "eth7"}, {MAC: mac("02:00:00:00:00:09")}}},
			want: []string{"link eth7: is configured but does not exist", "link 02:00:00:00:00:09: is configured but does not exist"}},
		{name: "no DHCP answer after a second", links: []Link{ready}, clients: searching(time.Second, dhcp.Selecting, "")},
		{name: "no DHCP answer after 12 seconds", links: []Link{ready}, clients: searching(12*time.Second, dhcp.Selecting, ""),
			want: []string{"link eth0: no DHCP lease after 12s: no DHCP server answers"}},
		{name: "a DHCP server that refuses", links: []Link{ready}, clients: searching(5*time.Second, dhcp.Requesting, `server 192.0.2.1 refuses: "no"`),
			want: []string{`link eth0: no DHCP lease after 5s: server 192.0.2.1 refuses: "no"`}},
		{name: "an operation failed", links: []Link{ready}, failed: []string{"link eth0: mtu 9000: cannot do: invalid argument"},
			want: []string{"link eth0: mtu 9000: cannot do: invalid argument"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := describe(observation{config: c.config, have: Have{Links: c.links}, clients: c.clients, failed: c.failed}, now)
			if !slices.Equal(s.Problems, c.want) {
				t.Errorf("got  %q\nwant %q", s.Problems, c.want)
			}
			if s.Converged != (len(c.failed) == 0) {
				t.Errorf("converged: %v", s.Converged)
			}
		})
	}
}

func TestAddresses(t *testing.T) {
	link := func(managed bool, addresses ...string) LinkState {
		l := LinkState{Managed: managed}
		for _, p := range prefixes(addresses...) {
			l.Addresses = append(l.Addresses, AddressState{Prefix: p})
		}
		return l
	}
	s := State{Links: []LinkState{
		link(true, "fe80::1/64", "2001:db8::1/64", "10.0.0.1/24"), link(true, "10.0.1.1/24"), link(false, "127.0.0.1/8", "10.9.9.9/24"),
	}}
	var got []string
	for _, a := range s.Addresses() {
		got = append(got, a.String())
	}
	if want := []string{"10.0.0.1", "10.0.1.1", "2001:db8::1"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestVRFAddresses checks that Addresses and NodeAddresses omit the addresses in a VRF.
func TestVRFAddresses(t *testing.T) {
	in := LinkState{Name: "eth0", Managed: true, Up: true, Master: "mgmt", Addresses: []AddressState{{Prefix: netip.MustParsePrefix("10.0.0.1/24"), Origin: "static"}}}
	out := LinkState{Name: "eth1", Managed: true, Up: true, Master: "bond0", Addresses: []AddressState{{Prefix: netip.MustParsePrefix("10.0.1.1/24"), Origin: "static"}}}
	s := State{Links: []LinkState{in, out, {Name: "mgmt", Kind: kindVRF, Managed: true, Up: true, Addresses: []AddressState{{Prefix: netip.MustParsePrefix("10.8.0.5/24"), Origin: "static"}}}, {Name: "bond0", Kind: kindBond}}}
	if want := []netip.Addr{netip.MustParseAddr("10.0.1.1")}; !slices.Equal(s.Addresses(), want) || !slices.Equal(s.NodeAddresses(nil), want) {
		t.Errorf("addresses %v and %v, want %v", s.Addresses(), s.NodeAddresses(nil), want)
	}
}

func TestTimeServers(t *testing.T) {
	l := lease("192.0.2.5/24", "")
	l.NTP = []netip.Addr{netip.MustParseAddr("192.0.2.123")}
	o := observation{have: Have{Links: []Link{card("eth0", "02:00:00:00:00:01")}}, leases: map[string]*dhcp.Lease{"eth0": l}}
	if got := describe(o, time.Now()).TimeServers; !slices.Equal(got, []string{"192.0.2.123"}) {
		t.Errorf("leased: %q", got)
	}
	o.config.NTP = []string{"time.example.test"}
	if got := describe(o, time.Now()).TimeServers; !slices.Equal(got, []string{"time.example.test"}) {
		t.Errorf("configured: %q", got)
	}
	o.config.NTP, l.NTP = nil, nil
	if got := describe(o, time.Now()).TimeServers; len(got) != 0 {
		t.Errorf("no server is configured, but %q would be used", got)
	}
}

// TestNodeAddresses checks the selection of the node addresses, for example that a node address
// remains when the kernel lists a new address before it.
func TestNodeAddresses(t *testing.T) {
	address := func(prefix, origin, unfit string) AddressState {
		return AddressState{netip.MustParsePrefix(prefix), origin, unfit}
	}
	link := func(addresses ...AddressState) LinkState {
		return LinkState{Managed: true, Up: true, Addresses: addresses}
	}
	down := link(address("10.0.0.3/24", "static", ""))
	down.Up = false
	for _, test := range []struct {
		says        string
		before      string // the previous node address
		links       []LinkState
		named, want string
	}{
		{"the first address of each IP family, IPv4 first", "", []LinkState{link(address("2001:db8::1/64", "static", ""), address("10.0.0.1/24", "dhcp", "")), link(address("10.0.1.1/24", "static", ""))}, "", "10.0.0.1 2001:db8::1"},
		{"only addresses of links that are up", "", []LinkState{down, link(address("10.0.1.1/24", "static", ""))}, "", "10.0.1.1"},
		{"no link-local address", "", []LinkState{link(address("fe80::1/64", "kernel", ""))}, "", ""},
		{"a named address before the others, on any link", "", []LinkState{link(address("10.0.0.1/24", "static", "")), link(address("10.0.1.1/24", "static", ""))}, "10.0.1.1", "10.0.1.1"},
		{"a static address before the previous, autoconfigured address", "2001:db8::9", []LinkState{link(address("2001:db8::9/64", "kernel", "")), link(address("2001:db8:1::1/64", "static", ""))}, "", "2001:db8:1::1"},
		{"the previous address before another autoconfigured address", "2001:db8::9", []LinkState{link(address("2001:db8::5/64", "kernel", "")), link(address("2001:db8::9/64", "kernel", ""))}, "", "2001:db8::9"},
		{"no deprecated address, even if it was the node address", "2001:db8::9", []LinkState{link(address("2001:db8::9/64", "kernel", "deprecated"), address("2001:db8:1::9/64", "kernel", ""))}, "", "2001:db8:1::9"},
		{"no tentative and no duplicate address", "", []LinkState{link(address("2001:db8::9/64", "kernel", "tentative"), address("2001:db8::8/64", "kernel", "duplicate"))}, "", ""},
		{"no temporary address (privacy extensions)", "", []LinkState{link(address("2001:db8::8/64", "kernel", "temporary"), address("2001:db8::9/64", "kernel", ""))}, "", "2001:db8::9"},
		{"an autoconfigured address before an address of unknown origin", "", []LinkState{link(address("2001:db8::8/64", "other", ""), address("2001:db8::9/64", "kernel", ""))}, "", "2001:db8::9"},
	} {
		s := State{Links: test.links}
		if test.before != "" {
			s.Node = []netip.Addr{netip.MustParseAddr(test.before)}
		}
		var named []netip.Addr
		if test.named != "" {
			named = append(named, netip.MustParseAddr(test.named))
		}
		var got []string
		for _, a := range s.NodeAddresses(named) {
			got = append(got, a.String())
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s: %q, want %q", test.says, got, test.want)
		}
	}
}

// TestDescribedOrder checks that a State lists addresses in the order of the plan and not of the
// kernel. It also checks that the State retains the node address and has the revision of the
// configuration.
func TestDescribedOrder(t *testing.T) {
	nic := card("eth0", "02:00:00:00:00:01")
	nic.Index, nic.Up, nic.Carrier = 2, true, true
	on := func(p string) Address { return Address{"eth0", 2, netip.MustParsePrefix(p)} }
	o := observation{
		revision: 7, node: []netip.Addr{netip.MustParseAddr("2001:db8::9")},
		config: Config{Links: []LinkConfig{{Name: "eth0", DHCP4: true, Addresses: prefixes("10.0.0.9/24", "10.0.0.8/24")}}},
		leases: map[string]*dhcp.Lease{"eth0": lease("192.0.2.5/24", "")},
		have: Have{
			Links:     []Link{nic},
			Addresses: []Address{on("192.0.2.5/24"), on("10.0.0.8/24"), on("10.0.0.9/24")},
			Foreign: []ForeignAddress{
				{Address: on("2001:db8::10/64"), Origin: "kernel"}, {Address: on("2001:db8::9/64"), Origin: "kernel"},
				{Address: on("2001:db8::1/64"), Origin: "kernel", Unfit: "temporary"},
			},
		},
	}
	s := describe(o, time.Now())
	var got []string
	for _, a := range s.Links[0].Addresses {
		got = append(got, strings.TrimSpace(a.Prefix.String()+" "+a.Unfit))
	}
	if want := []string{"10.0.0.9/24", "10.0.0.8/24", "192.0.2.5/24", "2001:db8::1/64 temporary", "2001:db8::9/64", "2001:db8::10/64"}; !slices.Equal(got, want) {
		t.Errorf("addresses are %q, want %q", got, want)
	}
	if want := []netip.Addr{netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("2001:db8::9")}; !slices.Equal(s.Node, want) {
		t.Errorf("the node addresses are %v, want %v", s.Node, want)
	}
	if s.Revision != 7 {
		t.Errorf("the State has revision %d, want 7", s.Revision)
	}
	// The controller has just started the client, so the client has no status yet. The State
	// nevertheless shows a client without a lease.
	if d := s.Links[0].DHCP; d == nil || d.Phase != "init" || d.Lease != nil {
		t.Errorf("the DHCP client is shown as %+v, want phase init without a lease", d)
	}
}
