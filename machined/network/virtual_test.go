package network

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// testBond returns a bond with the given mode and the defaults that a configuration has.
func testBond(mode string) Virtual {
	b := &Bond{Mode: mode, Hash: "layer2", MII: 100 * time.Millisecond}
	if mode == "802.3ad" {
		b.Rate = "slow"
	}
	return Virtual{Bond: b}
}

func list(selectors ...string) (out []Member) {
	for _, s := range selectors {
		out = append(out, Member{Selector: s})
	}
	return out
}

func testVLAN(parent string, id int) Virtual { return Virtual{VLAN: &VLAN{Parent: parent, ID: id}} }

// virtualCases are the cases of golden files with virtual links, hardware settings, rules and
// routes of Config.Routes.
func virtualCases() []testCase {
	links := func(list ...LinkConfig) Config { return Config{Links: list} }
	primary := testBond("active-backup")
	primary.Bond.Primary = "eth1"
	arp := Virtual{Bond: &Bond{Mode: "active-backup", Hash: "layer2", ARP: time.Second, Targets: []netip.Addr{netip.MustParseAddr("10.0.0.254")}}}
	uplink := func(v Virtual, members ...string) LinkConfig {
		return LinkConfig{Name: "uplink", Virtual: v, Members: list(members...), Addresses: prefixes("10.0.0.5/24", "2001:db8::5/64"), Routes: []RouteConfig{route("0.0.0.0/0", "10.0.0.1", 0)}}
	}
	single := LinkConfig{Name: "eth0", Addresses: prefixes("10.0.0.5/24", "2001:db8::5/64"), Routes: []RouteConfig{route("0.0.0.0/0", "10.0.0.1", 0)}}
	bridge := func(stp bool, members ...string) LinkConfig {
		l := uplink(Virtual{Bridge: &Bridge{STP: stp}}, members...)
		l.Name = "br0"
		return l
	}
	filtering := func(own int, tags ...string) LinkConfig {
		l := bridge(false, "eth0", "eth1")
		l.Virtual.Bridge.Filtering, l.Untagged = true, own
		for i := range tags {
			l.Members[i].Tags = tags[i]
		}
		return l
	}
	offloading := veth("eth0")
	offloading.Settings = map[string]string{HardwareOffload + "tx-tcp-segmentation": "on"}
	nic := card("eth0", "02:00:00:00:00:01")
	nic.Driver, nic.Path = "ixgbe", "pci0000:00/0000:03:00.0"
	nic.Settings = map[string]string{HardwareRX: "512", HardwarePause: "both", HardwareFunctions: "0", HardwareWake: "off"}
	policy, onePolicy := policyConfig(), policyConfig()
	onePolicy.Links, onePolicy.Rules = onePolicy.Links[:1], onePolicy.Rules[:1]
	return []testCase{
		{name: "bond", needs: []string{kindBond}, links: []Link{veth("eth0"), veth("eth1")}, stages: []stage{
			{says: "a single link with the machine's addresses", config: links(single)},
			{says: "the link becomes a member of a bond, which gets the addresses", config: links(uplink(testBond("active-backup"), "eth0"))},
			{says: "a second member joins: nothing else changes", config: links(uplink(testBond("active-backup"), "eth0", "eth1"))},
			{says: "a primary member", config: links(uplink(primary, "eth0", "eth1"))},
			{says: "ARP instead of MII", config: links(uplink(arp, "eth0", "eth1"))},
			{says: "another mode: the bond is created again", config: links(uplink(testBond("balance-xor"), "eth0", "eth1"))},
			{says: "a member leaves, and is not configured", config: links(uplink(testBond("balance-xor"), "eth1"))},
			{says: "back to the single link", config: links(single)},
		}},
		{name: "bridge", needs: []string{kindBridge}, links: []Link{veth("eth0"), veth("eth1")}, stages: []stage{
			{says: "a single link with the machine's addresses", config: links(single)},
			{says: "the link becomes a member of a bridge, which gets the addresses", config: links(bridge(false, "eth0"))},
			{says: "a second member and STP", config: links(bridge(true, "eth0", "eth1"))},
			{says: "back to the single link", config: links(single)},
		}},
		{name: "bridge-vlans", needs: []string{kindBridge, kindVLAN, kindFiltering}, links: []Link{veth("eth0"), veth("eth1")}, stages: []stage{
			{says: "a trunk, an access port, and the machine in VLAN 10 and VLAN 20", config: links(filtering(10, Tags([]int{10, 20}, 0), Tags(nil, 20)),
				LinkConfig{Name: "br0.20", Virtual: testVLAN("br0", 20), Addresses: prefixes("10.2.0.5/24")})},
			{says: "another VLAN on the trunk, and the machine only in VLAN 10", config: links(filtering(10, Tags([]int{10, 30}, 0), Tags(nil, 30)))},
			{says: "no filtering", config: links(bridge(false, "eth0", "eth1"))},
		}},
		{name: "vrf", needs: []string{kindVRF}, links: []Link{veth("eth0"), veth("eth1")}, stages: []stage{
			{says: "a single link with the machine's addresses", config: links(single)},
			{says: "the link becomes a member of a VRF: its routes move to the table", config: links(single, LinkConfig{Name: "mgmt", Virtual: Virtual{VRF: &VRF{Table: 100}}, Members: list("eth0")})},
			{says: "another table: the VRF is created again", config: links(single, LinkConfig{Name: "mgmt", Virtual: Virtual{VRF: &VRF{Table: 101}}, Members: list("eth0")})},
			{says: "no VRF", config: links(single)},
		}},
		{name: "wireguard", needs: []string{kindWireGuard, kindDummy}, links: []Link{veth("eth0")}, stages: []stage{
			{says: "a tunnel with a peer, and a dummy", config: links(single, tunnel(1), LinkConfig{Name: "dummy0", Virtual: Virtual{Dummy: &Dummy{}}, Addresses: prefixes("10.9.9.9/32")})},
			{says: "another peer: the first keeps its session", config: links(single, tunnel(1, 2))},
			{says: "the first peer is removed", config: links(single, tunnel(2))},
			{says: "no tunnel", config: links(single)},
		}},
		{name: "offloads", links: []Link{offloading}, stages: []stage{
			{says: "an offload is turned off", config: links(LinkConfig{Name: "eth0", Hardware: map[string]string{HardwareOffload + "tx-tcp-segmentation": "off"}})},
			{says: "the driver's own value again", config: links(LinkConfig{Name: "eth0"})},
		}},
		{name: "hardware", hardware: true, links: []Link{nic}, stages: []stage{
			{says: "matched by driver and path: larger rings, no pause frames, virtual functions", config: links(LinkConfig{Match: &Match{Driver: "ix*", Path: "*/0000:03:00.?"},
				Hardware: map[string]string{HardwareRX: "4096", HardwarePause: "off", HardwareFunctions: "4", HardwareWake: "magic"}})},
			{says: "another number of functions", config: links(LinkConfig{Match: &Match{Driver: "ix*"}, Hardware: map[string]string{HardwareRX: "4096", HardwareFunctions: "8"}})},
			{says: "nothing: everything returns", config: links(LinkConfig{Name: "eth0"})},
		}},
		{name: "policy", links: []Link{veth("eth0"), veth("eth1")}, stages: []stage{
			{says: "two uplinks with a table each, a route over both, and routes to nowhere", config: policy},
			{says: "the same again: nothing to do", config: policy},
			{says: "without the second uplink", config: onePolicy},
			{says: "nothing", config: links(single)},
		}},
		{name: "vlan", needs: []string{kindBond, kindVLAN}, links: []Link{veth("eth0"), veth("eth1")}, stages: []stage{
			{says: "a VLAN of a link without an entry of its own", config: links(LinkConfig{Name: "eth0.100", Virtual: testVLAN("eth0", 100), Addresses: prefixes("10.1.0.5/24")})},
			{says: "another ID: the VLAN is created again", config: links(LinkConfig{Name: "eth0.100", Virtual: testVLAN("eth0", 101), Addresses: prefixes("10.1.0.5/24")})},
			{says: "the VLAN on a bond, named before it", config: links(
				LinkConfig{Name: "mgmt", Virtual: testVLAN("uplink", 100), Addresses: prefixes("10.1.0.5/24")}, uplink(testBond("802.3ad"), "eth0", "eth1"))},
			{says: "larger frames on both", config: links(
				LinkConfig{Name: "mgmt", Virtual: testVLAN("uplink", 100), Addresses: prefixes("10.1.0.5/24")},
				LinkConfig{Name: "uplink", Virtual: testBond("802.3ad"), Members: list("eth0", "eth1"), MTU: 9000})},
			{says: "another mode of the bond: the VLAN goes with it, and is created again", config: links(
				LinkConfig{Name: "mgmt", Virtual: testVLAN("uplink", 100), Addresses: prefixes("10.1.0.5/24")}, uplink(testBond("active-backup"), "eth0", "eth1"))},
			{says: "nothing", config: links(LinkConfig{Name: "eth0"})},
		}},
	}
}

// kindFiltering in testCase.needs means that the kernel must support VLAN filtering of bridges.
const kindFiltering = "VLAN filtering"

// policyConfig returns a configuration with two uplinks. Packets from the address of the second
// uplink use a separate table. A route has next hops on both uplinks.
func policyConfig() Config {
	second := route("0.0.0.0/0", "10.1.0.1", 0)
	second.Table = 200
	sourced := route("10.5.0.0/16", "10.0.0.1", 0)
	sourced.Source = netip.MustParseAddr("10.0.0.6")
	hops := func(a, b string) []Hop {
		return []Hop{{Link: "eth0", Via: netip.MustParseAddr(a), Weight: 2}, {Link: "eth1", Via: netip.MustParseAddr(b)}}
	}
	return Config{
		Links: []LinkConfig{
			{Name: "eth0", Addresses: prefixes("10.0.0.5/24", "10.0.0.6/24", "2001:db8::5/64"), Routes: []RouteConfig{route("0.0.0.0/0", "10.0.0.1", 0), sourced}},
			{Name: "eth1", Addresses: prefixes("10.1.0.5/24", "2001:db8:1::5/64"), Routes: []RouteConfig{second}},
		},
		Routes: []RouteConfig{
			{To: netip.MustParsePrefix("10.8.0.0/16"), Hops: hops("10.0.0.1", "10.1.0.1")},
			{To: netip.MustParsePrefix("2001:db8:8::/48"), Hops: hops("2001:db8::1", "2001:db8:1::1")},
			{To: netip.MustParsePrefix("10.0.0.0/8"), Kind: "blackhole"},
			{To: netip.MustParsePrefix("2001:db8::/32"), Kind: "unreachable", Metric: 7, Table: 200},
		},
		Rules: []Rule{
			{Priority: 1000, From: netip.MustParsePrefix("10.1.0.5/32"), Table: 200},
			{IPv6: true, Priority: 1001, To: netip.MustParsePrefix("2001:db8:9::/48"), Incoming: "eth1", Mark: 7, Table: 200},
		},
	}
}

// tunnel returns a WireGuard link with a peer for each number.
func tunnel(peers ...byte) LinkConfig {
	w := &WireGuard{Key: NewSecretKey([32]byte{8, 31: 64}), Port: 51821}
	for _, n := range peers {
		w.Peers = append(w.Peers, Peer{
			Key: wgtypes.Key{n}, Preshared: NewSecretKey([32]byte{n, 1}), KeepAlive: 25 * time.Second,
			Endpoint: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, n + 100}), 51821),
			Allowed:  prefixes(fmt.Sprintf("10.50.%d.0/24", n), fmt.Sprintf("2001:db8:50:%d::/64", n)),
		})
	}
	return LinkConfig{Name: "wg0", Virtual: Virtual{WireGuard: w}, Addresses: prefixes("10.50.0.1/24")}
}

// randomBridgeStage creates a random configuration of three links, some of which belong to a
// bridge. It adds rules, routes that reject packets, and routes with several next hops.
func randomBridgeStage(r *rand.Rand, names []string) stage {
	free, use := slices.Clone(names), []string{}
	var br LinkConfig
	if r.IntN(3) > 0 {
		n := r.IntN(len(free) + 1)
		br = LinkConfig{Virtual: Virtual{Bridge: &Bridge{STP: r.IntN(2) == 0}}, Members: list(free[:n]...)}
		free, use = free[n:], append(use, "br0")
	}
	use = append(use, free...)
	s := randomStage(r, use)
	for i := range s.config.Links {
		if l := &s.config.Links[i]; l.Name == "br0" {
			l.Virtual, l.Members = br.Virtual, br.Members
		}
	}
	all := policyConfig()
	for _, rule := range all.Rules {
		if r.IntN(2) == 0 {
			rule.Table += uint32(r.IntN(2))
			s.config.Rules = append(s.config.Rules, rule)
		}
	}
	for _, route := range all.Routes {
		for i := range route.Hops {
			if len(use) > 0 {
				route.Hops[i].Link, route.Hops[i].Weight = use[r.IntN(len(use))], 1+r.IntN(3)
				// an address that no link of the machine has
				route.Hops[i].Via = netip.AddrFrom4([4]byte{10, byte(i), 0, 250})
			}
		}
		if len(route.Hops) > 0 && (len(use) == 0 || route.Hops[0].Link == route.Hops[1].Link) {
			route.Hops = route.Hops[:1]
		}
		hopless := len(route.Hops) > 0 && (len(use) == 0 || route.To.Addr().Is6())
		if r.IntN(2) == 0 && !hopless {
			route.Metric = []uint32{0, 5, 77}[r.IntN(3)]
			s.config.Routes = append(s.config.Routes, route)
		}
	}
	return s
}

// TestBridgeLaws checks the two laws of a domain (checkLaws) with bridges, rules and routes of
// Config.Routes.
func TestBridgeLaws(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			names := []string{"eth0", "eth1", "eth2"}
			checkLaws(t, newFake(veth("eth0"), veth("eth1"), veth("eth2")), rand.New(rand.NewPCG(seed, 4)), names, 12, randomBridgeStage)
			checkReturn(t, newFake(veth("eth0"), veth("eth1"), veth("eth2")), rand.New(rand.NewPCG(seed, 5)), names, randomBridgeStage)
		})
	}
}

// randomVirtualStage creates a random configuration of three links, some of which belong to a bond
// or a VRF. It adds VLANs, a dummy and a tunnel. Addresses and routes come from randomStage.
func randomVirtualStage(r *rand.Rand, names []string) stage {
	pick := func(list []string) string { return list[r.IntN(len(list))] }
	free := slices.Clone(names)
	virtual, members := map[string]Virtual{}, map[string][]string{}
	use := []string{}
	if r.IntN(3) > 0 {
		b := testBond(pick([]string{"active-backup", "balance-xor", "802.3ad"}))
		n := r.IntN(len(free) + 1)
		virtual["bond0"], members["bond0"] = b, free[:n]
		if b.Bond.Mode == "active-backup" && n > 0 && r.IntN(2) == 0 {
			b.Bond.Primary = free[r.IntN(n)]
		}
		if b.Bond.Mode != "802.3ad" && r.IntN(2) == 0 {
			b.Bond.MII, b.Bond.ARP, b.Bond.Targets = 0, time.Second, []netip.Addr{netip.MustParseAddr("10.0.0.9")}
		} else if r.IntN(2) == 0 {
			b.Bond.Up, b.Bond.Down = 200*time.Millisecond, 300*time.Millisecond
		}
		if b.Bond.Mode == "802.3ad" {
			b.Bond.MinLinks, b.Bond.Hash = r.IntN(2), pick([]string{"layer2", "layer3+4"})
		}
		free, use = free[n:], append(use, "bond0")
	}
	use = append(use, free...)
	if len(free) > 1 && r.IntN(3) == 0 {
		virtual["vrf0"], members["vrf0"] = Virtual{VRF: &VRF{Table: 100 + uint32(r.IntN(2))}}, free[:1]
	}
	if r.IntN(4) == 0 {
		virtual["dummy0"] = Virtual{Dummy: &Dummy{}}
	}
	if r.IntN(3) == 0 {
		virtual["wg0"] = tunnel([][]byte{{1}, {2}, {1, 2}, {}}[r.IntN(4)]...).Virtual
	}
	for _, id := range []int{100, 200} {
		if len(use) > 0 && r.IntN(2) == 0 {
			name := fmt.Sprintf("vlan%d", id)
			virtual[name] = testVLAN(pick(use), id+r.IntN(2))
			use = append(use, name)
		}
	}
	s := randomStage(r, use)
	for i := range s.config.Links {
		s.config.Links[i].IPv6.AcceptRA = false
		if !slices.Contains(free, s.config.Links[i].Name) {
			s.config.Links[i].MTU = 0
		}
	}
	for _, name := range slices.Sorted(maps.Keys(virtual)) {
		v := virtual[name]
		i := slices.IndexFunc(s.config.Links, func(l LinkConfig) bool { return l.Name == name })
		if i < 0 {
			i = len(s.config.Links)
			s.config.Links = append(s.config.Links, LinkConfig{Name: name})
		}
		l := &s.config.Links[i]
		l.Virtual, l.Members = v, list(members[name]...)
		if v.Bond != nil {
			l.MTU = []int{0, 1400, 1500}[r.IntN(3)]
		}
	}
	slices.SortFunc(s.config.Links, func(a, b LinkConfig) int { return slices.Index(use, a.Name) - slices.Index(use, b.Name) })
	if r.IntN(2) == 0 {
		slices.Reverse(s.config.Links)
	}
	return s
}

// TestVirtualLaws checks the two laws of a domain (checkLaws) with bonds, VLANs, VRFs, dummies and
// tunnels.
func TestVirtualLaws(t *testing.T) {
	for seed := range uint64(100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 2))
			names := []string{"eth0", "eth1", "eth2"}
			checkLaws(t, newFake(veth("eth0"), veth("eth1"), veth("eth2")), r, names, 12, randomVirtualStage)
		})
	}
}

// TestReturn checks that the kernel has its former state again after the machine has returned to
// its former configuration (checkReturn).
func TestReturn(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 3))
		names := []string{"eth0", "eth1", "eth2"}
		checkReturn(t, newFake(veth("eth0"), veth("eth1"), veth("eth2")), r, names, randomVirtualStage)
	}
}

// checkReturn applies a first configuration, then a second, then the first again. It checks that
// the kernel has the same state after both applications of the first configuration.
func checkReturn(t *testing.T, m machine, r *rand.Rand, names []string, random func(*rand.Rand, []string) stage) {
	t.Helper()
	former := formerMTUs{}
	first, second := random(r, names), random(r, names)
	var states []string
	for n, s := range []stage{first, second, first} {
		s.former = former
		do(t, m, s, settle(t, m, s), n)
		if left := settle(t, m, s); len(left) > 0 {
			t.Fatalf("these operations remain: %v\nconfiguration: %+v", left, s.config)
		}
		have, err := m.Read(s.config)
		if err != nil {
			t.Fatal(err)
		}
		states = append(states, fingerprint(have, s.config))
	}
	if states[0] != states[2] {
		t.Errorf("before:\n%s\nafter:\n%s\nfirst: %+v\nsecond: %+v", states[0], states[2], first.config, second.config)
	}
}

// fingerprint returns a text that describes the managed links, the addresses, the rules and the
// routes. It omits indexes and MACs.
func fingerprint(have Have, c Config) string {
	var lines []string
	for _, l := range have.Links {
		managed := slices.ContainsFunc(planLinks(c, Facts{Links: have.Links}), func(w WantLink) bool { return w.Index == l.Index })
		if managed || l.Own {
			lines = append(lines, fmt.Sprintf("%s up %v mtu %d master %q %v", l.Name, l.Up, l.MTU, l.Master, l.Virtual))
		}
	}
	for _, a := range have.Addresses {
		lines = append(lines, a.String())
	}
	for _, r := range have.Rules {
		lines = append(lines, r.String())
	}
	for _, r := range have.Routes {
		r.OnLink = false // a plan and the kernel can differ in OnLink
		lines = append(lines, r.String())
	}
	slices.Sort(lines)
	return fmt.Sprintln(lines)
}

// TestMemberMAC checks that a bond gets the MAC of its first member. It also checks that selectors
// match the permanent MAC, because a bond changes the present MAC of its members.
func TestMemberMAC(t *testing.T) {
	eth0, eth1 := card("eth0", "02:00:00:00:00:01"), card("eth1", "02:00:00:00:00:02")
	eth0.Index, eth1.Index = 2, 3
	c := Config{Links: []LinkConfig{{Name: "bond0", Virtual: testBond("active-backup"), Members: list("02:00:00:00:00:02", "eth0")}}}
	first := func(links ...Link) WantLink { return planLinks(c, Facts{Links: links})[0] }
	if got := first(eth0, eth1).MAC; got != eth1.MAC {
		t.Errorf("the bond has the MAC %s, want that of its first member, eth1", got)
	}
	eth1.Permanent, eth1.MAC = eth1.MAC, eth0.MAC
	want := planLinks(c, Facts{Links: []Link{eth0, eth1}})
	for _, name := range []string{"eth0", "eth1"} {
		if i := slices.IndexFunc(want, func(w WantLink) bool { return w.Name == name }); i < 0 || want[i].Master != "bond0" {
			t.Errorf("%s is not a member: %+v", name, want)
		}
	}
	missing := Missing(Config{Links: []LinkConfig{{Name: "bond0", Virtual: testBond("active-backup"), Members: list("eth0", "eth9", "enp*")}, {Name: "eth8.5", Virtual: testVLAN("eth8", 5)}}}, Facts{Links: []Link{eth0}})
	if want := []string{"eth9", "enp*", "eth8"}; !slices.Equal(missing, want) {
		t.Errorf("Missing returns %q, want %q", missing, want)
	}
}

// TestMatch checks which hardware a match selects. It selects all matching hardware that no other
// entry has reserved. An entry with addresses selects only a single link.
func TestMatch(t *testing.T) {
	var links []Link
	for i, name := range []string{"eth0", "eth1", "enp3s0"} {
		l := card(name, fmt.Sprintf("02:00:00:00:00:0%d", i))
		l.Index, l.Path = i+2, fmt.Sprintf("pci0000:00/0000:0%d:00.0/virtio%d", i, i)
		links = append(links, l)
	}
	bridge := veth("eth9")
	bridge.Index = 9
	links = append(links, bridge)
	for _, c := range []struct {
		says   string
		config Config
		want   string // the selected links, each with the index of its entry in Config.Links
		lines  int    // number of problems
	}{
		{"by name", Config{Links: []LinkConfig{{Match: &Match{Name: "eth*"}}}}, "eth0=0 eth1=0", 0},
		{"by MAC and driver", Config{Links: []LinkConfig{{Match: &Match{MAC: "02:*:02", Driver: "virtio_net"}}}}, "enp3s0=0", 0},
		{"by path", Config{Links: []LinkConfig{{Match: &Match{Path: "*/0000:01:00.0/*"}}}}, "eth1=0", 0},
		{"all hardware except a link that another entry names", Config{Links: []LinkConfig{{Match: &Match{Name: "*"}}, {Name: "eth1"}}}, "eth0=0 enp3s0=0 eth1=1", 0},
		{"the first matching entry", Config{Links: []LinkConfig{{Match: &Match{Name: "eth?"}}, {Match: &Match{Driver: "*"}}}}, "eth0=0 eth1=0 enp3s0=1", 0},
		{"a single link, if the entry has addresses", Config{Links: []LinkConfig{{Match: &Match{Name: "eth*"}, Addresses: prefixes("10.0.0.5/24")}}}, "eth0=0", 1},
	} {
		var got []string
		want := planLinks(c.config, Facts{Links: links})
		for _, w := range want {
			got = append(got, fmt.Sprintf("%s=%d", w.Name, w.Config))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %q", c.says, got, c.want)
		}
		if lines := ambiguous(c.config, Facts{Links: links}, want); len(lines) != c.lines {
			t.Errorf("%s: problems %q, want %d", c.says, lines, c.lines)
		}
	}
}
