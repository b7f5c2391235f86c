package network

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/orlop-os/orlop/machined/network/dhcp"
)

// replace applies configurations to a machine with the given hardware, in order. It checks that
// each of them converges in a single round. It returns the operations of the last configuration.
func replace(t *testing.T, hardware []Link, configs ...Config) []string {
	t.Helper()
	m, former := newFake(hardware...), formerMTUs{}
	var lines []string
	for n, c := range configs {
		s := stage{config: c, former: former}
		ops := settle(t, m, s)
		lines = nil
		for _, o := range ops {
			lines = append(lines, o.String())
		}
		do(t, m, s, ops, n)
		if left := settle(t, m, s); len(left) > 0 {
			t.Fatalf("configuration %d: these operations remain: %v\nperformed: %s", n, left, strings.Join(lines, "\n"))
		}
	}
	return lines
}

func on(links ...LinkConfig) Config { return Config{Links: links} }

func vlanLink(name, parent string, id int, addresses ...string) LinkConfig {
	return LinkConfig{Name: name, Virtual: testVLAN(parent, id), Addresses: prefixes(addresses...)}
}

// TestManyMissing checks that a link that is created again and a new link get different indexes.
// The number of missing links in the configuration varies, because each missing link uses an index,
// too.
func TestManyMissing(t *testing.T) {
	for missing := range 12 {
		before, after := on(vlanLink("a", "eth0", 1, "10.1.0.5/24")), on(vlanLink("a", "eth0", 2, "10.1.0.5/24"))
		for n := range missing {
			after.Links = append(after.Links, LinkConfig{Name: fmt.Sprintf("enp%d", n)})
		}
		after.Links = append(after.Links, vlanLink("b", "eth0", 3, "10.2.0.5/24"))
		replace(t, []Link{veth("eth0")}, before, after)
	}
}

// TestMissingBelow checks that the plan omits a VLAN on a VLAN if the hardware below both is
// missing.
func TestMissingBelow(t *testing.T) {
	c := on(vlanLink("upper", "lower", 5), vlanLink("lower", "eth9", 6), LinkConfig{Name: "eth0"})
	replace(t, []Link{veth("eth0")}, c)
	if got := Missing(c, Facts{Links: []Link{veth("eth0")}}); !slices.Equal(got, []string{"eth9"}) {
		t.Errorf("Missing returns %q, want eth9", got)
	}
}

// TestSourceMoves checks a route with a source address that is on another link. When the other link
// is created again, the kernel drops the route with the address, so the route must be added again.
func TestSourceMoves(t *testing.T) {
	sourced := func(source string) LinkConfig {
		r := route("10.9.0.0/16", "10.0.0.1", 0)
		r.Source = netip.MustParseAddr(source)
		return LinkConfig{Name: "eth0", Addresses: prefixes("10.0.0.5/24"), Routes: []RouteConfig{r}}
	}
	lines := replace(t, []Link{veth("eth0"), veth("eth1")},
		on(sourced("10.1.0.5"), vlanLink("v", "eth1", 1, "10.1.0.5/24")),
		on(sourced("10.1.0.5"), vlanLink("v", "eth1", 2, "10.1.0.5/24")))
	if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, "route 10.9.0.0/16") }) {
		t.Errorf("the route is not added again: %s", strings.Join(lines, "\n"))
	}
}

// TestSourceLength checks that the prefix length of a source address can change. An IPv6 address
// must be removed before it is added with another length, so the route has no source for a moment.
func TestSourceLength(t *testing.T) {
	with := func(addresses ...string) Config {
		four, six := route("10.9.0.0/16", "10.0.0.1", 0), route("2001:db8:9::/48", "fe80::1", 0)
		four.Source, six.Source = netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("2001:db8::5")
		return on(LinkConfig{Name: "eth0", Addresses: prefixes(addresses...), Routes: []RouteConfig{four, six}})
	}
	replace(t, []Link{veth("eth0")}, with("10.0.0.5/24", "2001:db8::5/64"), with("10.0.0.5/16", "2001:db8::5/48"))
}

// TestPortsSwap checks that two tunnels can exchange their UDP ports.
func TestPortsSwap(t *testing.T) {
	wg := func(name string, port int) LinkConfig {
		l := tunnel()
		l.Name, l.Addresses = name, nil
		l.Virtual.WireGuard.Port = port
		return l
	}
	eth0 := LinkConfig{Name: "eth0"}
	replace(t, []Link{veth("eth0")}, on(eth0, wg("wg0", 1), wg("wg1", 2)), on(eth0, wg("wg0", 2), wg("wg1", 1)))
	replace(t, []Link{veth("eth0")}, on(eth0, wg("wg0", 1), wg("wg1", 2)), on(eth0, wg("wg0", 2), wg("wg1", 3)))
	replace(t, []Link{veth("eth0")}, on(eth0, wg("wg0", 1), wg("wg1", 2)), on(eth0, wg("wg1", 1)))
	replace(t, []Link{veth("eth0")}, on(eth0, wg("wg0", 1)), on(eth0, wg("wg1", 1)))
}

// TestMatchedMembers checks a match that selects members of a bond or a bridge: the members get the
// hardware settings of the match, but no addresses.
func TestMatchedMembers(t *testing.T) {
	rings := map[string]string{HardwareRX: "4096"}
	for _, v := range []Virtual{testBond("active-backup"), {Bridge: &Bridge{}}} {
		c := on(LinkConfig{Match: &Match{Name: "eth*"}, DHCP4: true, Addresses: prefixes("10.0.0.5/24"), Hardware: rings},
			LinkConfig{Name: "up", Virtual: v, Members: list("eth0", "eth1")})
		var links []Link
		for i, name := range []string{"eth0", "eth1", "eth2"} {
			l := card(name, fmt.Sprintf("02:00:00:00:00:0%d", i))
			l.Index = i + 2
			links = append(links, l)
		}
		want := Plan(c, Facts{Links: links})
		for _, w := range want.Links {
			if member := w.Name == "eth0" || w.Name == "eth1"; w.Virtual.Kind() == "" && (w.DHCP4 == member || w.Hardware[HardwareRX] != "4096") {
				t.Errorf("%s of %s: DHCP %v, hardware %v", w.Name, v.Kind(), w.DHCP4, w.Hardware)
			}
		}
		if len(want.Addresses) != 1 || want.Addresses[0].Link != "eth2" {
			t.Errorf("%s: the plan has the addresses %v, want one, on eth2", v.Kind(), want.Addresses)
		}
		if lines := ambiguous(c, Facts{Links: links}, want.Links); len(lines) > 0 {
			t.Errorf("%s: the match is reported as ambiguous: %q", v.Kind(), lines)
		}
	}
}

// TestFunctions checks a match that selects a card and its virtual functions: only the card gets
// the number of virtual functions.
func TestFunctions(t *testing.T) {
	pf, vf := card("eth0", "02:00:00:00:00:01"), card("eth0v0", "02:00:00:00:00:02")
	pf.Settings, vf.Settings = map[string]string{HardwareFunctions: "0", HardwareRX: "512"}, map[string]string{HardwareRX: "512"}
	vf.Function = true
	replace(t, []Link{pf, vf}, on(LinkConfig{Match: &Match{Name: "eth*"}, Hardware: map[string]string{HardwareFunctions: "1", HardwareRX: "4096"}}))
}

// TestTaken checks that Taken returns the name of a new link if hardware or another component has
// the name.
func TestTaken(t *testing.T) {
	own := Link{Name: "bond0", Kind: kindBond, Own: true}
	links := []Link{veth("eth0"), {Name: "dummy0", Kind: kindDummy}, own}
	c := on(vlanLink("eth0", "eth1", 5), LinkConfig{Name: "dummy0", Virtual: Virtual{Dummy: &Dummy{}}}, LinkConfig{Name: "bond0", Virtual: Virtual{Bridge: &Bridge{}}}, LinkConfig{Name: "eth1"})
	if got := Taken(c, Facts{Links: links}); !slices.Equal(got, []string{"eth0", "dummy0"}) {
		t.Errorf("Taken returns %q, want eth0 and dummy0", got)
	}
}

// TestNoSecrets checks that the text of a configuration, of a plan, of an operation and of an error
// contains no key.
func TestNoSecrets(t *testing.T) {
	c := on(tunnel(1, 2))
	m := newFake()
	have, err := m.Read(c)
	if err != nil {
		t.Fatal(err)
	}
	w := c.Links[0].Virtual.WireGuard
	secrets := []wgtypes.Key{w.Key.key, w.Peers[0].Preshared.key, w.Peers[1].Preshared.key}
	want := Plan(c, Facts{Links: have.Links})
	texts := []string{fmt.Sprintf("%+v %#v", c, c), fmt.Sprintf("%+v", want), fmt.Sprintf("%v %+v %#v", *w, *w, *w)}
	for _, o := range Diff(have, want) {
		texts = append(texts, o.String(), fmt.Sprintf("%+v", o), fmt.Sprint(m.Do(o)))
	}
	for _, text := range texts {
		for _, s := range secrets {
			raw := fmt.Sprint(s[:8])
			if strings.Contains(text, s.String()) || strings.Contains(text, strings.Trim(raw, "[]")) || strings.Contains(text, fmt.Sprintf("%x", s[:8])) || strings.Contains(text, fmt.Sprintf("%#v", s)) {
				t.Errorf("a key is shown: %s", text)
			}
		}
	}
}

// TestStackedMAC checks that a virtual link on other virtual links gets the MAC of the hardware
// below, also if the links in between do not exist yet. A machine thus retains its lease when its
// bond becomes a port of a bridge.
func TestStackedMAC(t *testing.T) {
	eth0, eth1 := card("eth0", "02:00:00:00:00:09"), card("eth1", "02:00:00:00:00:01")
	eth0.Index, eth1.Index = 2, 3
	c := on(LinkConfig{Name: "br0", Virtual: Virtual{Bridge: &Bridge{}}, Members: list("v5", "eth1")}, vlanLink("v5", "bond0", 5),
		LinkConfig{Name: "bond0", Virtual: testBond("active-backup"), Members: list("eth0")})
	for _, links := range [][]Link{{eth0, eth1}, {eth0, eth1, {Name: "bond0", Index: 4, Own: true, Kind: kindBond, MAC: eth0.MAC}}} {
		for _, w := range planLinks(c, Facts{Links: links}) {
			if (w.Name == "br0" || w.Name == "bond0") && w.MAC != eth0.MAC {
				t.Errorf("%s has the MAC %q", w.Name, w.MAC)
			}
		}
	}
}

// TestLeasedVLAN checks that the lease of a VLAN does not set a larger MTU than the parent has,
// because the kernel would reject the larger MTU in each round.
func TestLeasedVLAN(t *testing.T) {
	v := vlanLink("v", "eth0", 5)
	v.DHCP4 = true
	for _, mtu := range []int{1400, 1500, 9000} {
		l := lease("10.1.0.5/24", "")
		l.MTU = mtu
		m := newFake(veth("eth0"))
		s := stage{config: on(v), leases: map[string]*dhcp.Lease{"v": l}, former: formerMTUs{}}
		do(t, m, s, settle(t, m, s), 0)
		if left := settle(t, m, s); len(left) > 0 || m.named("v").MTU != min(mtu, 1500) {
			t.Errorf("lease with MTU %d: the link has MTU %d, remaining operations: %v", mtu, m.named("v").MTU, left)
		}
	}
}

// stackKinds has, for each kind of link, the kinds of links that can be below. "" is hardware.
var stackKinds = map[string][]string{
	kindBond:   {"", kindVLAN},
	kindBridge: {"", kindBond, kindVLAN, kindDummy},
	kindVLAN:   {"", kindBond, kindBridge, kindVLAN},
	kindVRF:    {"", kindBond, kindBridge, kindVLAN, kindDummy, kindWireGuard},
}

// randomStack creates a random configuration of links on links, in random order. A name can have
// another kind in each configuration.
func randomStack(r *rand.Rand, names []string) stage {
	type part struct {
		kind     string
		member   bool // belongs to another link
		enslaved bool // belongs to a bond or a bridge, so it has no addresses
		tagged   bool // is the parent of a VLAN, so it cannot join a bond
	}
	parts := map[string]*part{}
	for _, name := range names {
		parts[name] = &part{}
	}
	made, free := map[string]LinkConfig{}, []int{1, 2, 3, 4, 5}
	r.Shuffle(len(free), func(i, j int) { free[i], free[j] = free[j], free[i] })
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		kind := []string{kindBond, kindBridge, kindVLAN, kindVLAN, kindVRF, kindDummy, kindWireGuard, ""}[r.IntN(8)]
		var below []string
		for _, n := range slices.Sorted(maps.Keys(parts)) {
			p := parts[n]
			if slices.Contains(stackKinds[kind], p.kind) && (!p.member || kind == kindVLAN && !p.enslaved) && (kind != kindBond || !p.tagged) {
				below = append(below, n)
			}
		}
		r.Shuffle(len(below), func(i, j int) { below[i], below[j] = below[j], below[i] })
		l := LinkConfig{Name: name}
		switch kind {
		case "":
			continue
		case kindVLAN:
			if len(below) == 0 {
				continue
			}
			l.Virtual = testVLAN(below[0], 100+int(name[0])) // each name has a different ID
			parts[below[0]].tagged = true
		case kindDummy:
			l.Virtual = Virtual{Dummy: &Dummy{}}
		case kindWireGuard:
			l.Virtual = tunnel(byte(1 + r.IntN(2))).Virtual
			l.Virtual.WireGuard.Port = free[0]
			free = free[1:]
		case kindBond:
			l.Virtual = testBond([]string{"active-backup", "802.3ad"}[r.IntN(2)])
		case kindBridge:
			l.Virtual = Virtual{Bridge: &Bridge{STP: r.IntN(2) == 0}}
		case kindVRF:
			l.Virtual = Virtual{VRF: &VRF{Table: 100 + uint32(name[0])}}
		}
		if kind == kindBond || kind == kindBridge || kind == kindVRF {
			below = below[:r.IntN(len(below)+1)]
			l.Members = list(below...)
			for _, n := range below {
				parts[n].member, parts[n].enslaved = true, kind != kindVRF
			}
		}
		made[name], parts[name] = l, &part{kind: kind}
	}
	var use []string
	for _, n := range slices.Sorted(maps.Keys(parts)) {
		if !parts[n].enslaved && parts[n].kind != kindVRF {
			use = append(use, n)
		}
	}
	s := randomStage(r, use)
	for i := range s.config.Links {
		l := &s.config.Links[i]
		l.IPv6.AcceptRA = false
		if parts[l.Name].kind != "" {
			l.MTU = 0
		}
		if m, is := made[l.Name]; is {
			l.Virtual, l.Members = m.Virtual, m.Members
			delete(made, l.Name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(made)) {
		s.config.Links = append(s.config.Links, made[name])
	}
	r.Shuffle(len(s.config.Links), func(i, j int) {
		s.config.Links[i], s.config.Links[j] = s.config.Links[j], s.config.Links[i]
	})
	return s
}

// TestStackLaws checks the two laws of a domain (checkLaws) with links on links. A name can have
// another kind of link in each configuration.
func TestStackLaws(t *testing.T) {
	names := []string{"eth0", "eth1", "eth2"}
	for seed := range uint64(100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			checkLaws(t, newFake(veth("eth0"), veth("eth1"), veth("eth2")), rand.New(rand.NewPCG(seed, 6)), names, 12, randomStack)
			checkReturn(t, newFake(veth("eth0"), veth("eth1"), veth("eth2")), rand.New(rand.NewPCG(seed, 7)), names, randomStack)
		})
	}
}

// TestVRFNames checks that the machine takes no name servers, time servers or host name from a
// lease in a VRF, and that its host name does not resolve to an address in a VRF. The machine
// itself uses only the main table.
func TestVRFNames(t *testing.T) {
	c := on(LinkConfig{Name: "eth0", DHCP4: true}, LinkConfig{Name: "eth1", Addresses: prefixes("10.1.0.5/24")},
		LinkConfig{Name: "red", Virtual: Virtual{VRF: &VRF{Table: 100}}, Members: list("eth0"), Addresses: prefixes("10.2.0.5/24")})
	l := lease("10.0.0.5/24", "10.0.0.1")
	l.DNS, l.NTP, l.Hostname = []netip.Addr{netip.MustParseAddr("10.0.0.53")}, []netip.Addr{netip.MustParseAddr("10.0.0.123")}, "red-name"
	f := Facts{Links: newFake(veth("eth0"), veth("eth1")).have.Links, Leases: map[string]*dhcp.Lease{"eth0": l}}
	w := Plan(c, f)
	if r := planResolver(c, f, w.Links); len(r.Servers) > 0 || len(planTimeServers(c, f, w.Links)) > 0 || w.Hostname == "red-name" {
		t.Errorf("the machine uses values of a lease in a VRF: resolvers %v, time servers, or host name %s", r.Servers, w.Hostname)
	}
	if !strings.Contains(w.Files.Hosts, "10.1.0.5 ") {
		t.Errorf("the hosts file lacks the address 10.1.0.5:\n%s", w.Files.Hosts)
	}
	if !slices.ContainsFunc(w.Routes, func(r Route) bool { return r.Via == netip.MustParseAddr("10.0.0.1") && r.Table == 100 }) {
		t.Errorf("the table of the VRF has no route via 10.0.0.1: %v", w.Routes)
	}
}
