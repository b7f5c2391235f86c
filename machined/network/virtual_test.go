package network

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// testBond returns a bond of a mode as the configuration gives it, with the MII monitor.
func testBond(mode string) Virtual {
	b := &Bond{Mode: mode, Hash: "layer2", MII: 100 * time.Millisecond}
	if mode == "802.3ad" {
		b.Rate = "slow"
	}
	return Virtual{Bond: b}
}

func testVLAN(parent string, id int) Virtual { return Virtual{VLAN: &VLAN{Parent: parent, ID: id}} }

// virtualCases are the golden files of created links.
func virtualCases() []testCase {
	links := func(list ...LinkConfig) Config { return Config{Links: list} }
	primary := testBond("active-backup")
	primary.Bond.Primary = "eth1"
	arp := Virtual{Bond: &Bond{Mode: "active-backup", Hash: "layer2", ARP: time.Second, Targets: []netip.Addr{netip.MustParseAddr("10.0.0.254")}}}
	uplink := func(v Virtual, members ...string) LinkConfig {
		return LinkConfig{Name: "uplink", Virtual: v, Members: members, Addresses: prefixes("10.0.0.5/24", "2001:db8::5/64"), Routes: []RouteConfig{route("0.0.0.0/0", "10.0.0.1", 0)}}
	}
	single := LinkConfig{Name: "eth0", Addresses: prefixes("10.0.0.5/24", "2001:db8::5/64"), Routes: []RouteConfig{route("0.0.0.0/0", "10.0.0.1", 0)}}
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
		{name: "vlan", needs: []string{kindBond, kindVLAN}, links: []Link{veth("eth0"), veth("eth1")}, stages: []stage{
			{says: "a VLAN of a link without an entry of its own", config: links(LinkConfig{Name: "eth0.100", Virtual: testVLAN("eth0", 100), Addresses: prefixes("10.1.0.5/24")})},
			{says: "another ID: the VLAN is created again", config: links(LinkConfig{Name: "eth0.100", Virtual: testVLAN("eth0", 101), Addresses: prefixes("10.1.0.5/24")})},
			{says: "the VLAN on a bond, named before it", config: links(
				LinkConfig{Name: "mgmt", Virtual: testVLAN("uplink", 100), Addresses: prefixes("10.1.0.5/24")}, uplink(testBond("802.3ad"), "eth0", "eth1"))},
			{says: "larger frames on both", config: links(
				LinkConfig{Name: "mgmt", Virtual: testVLAN("uplink", 100), Addresses: prefixes("10.1.0.5/24")},
				LinkConfig{Name: "uplink", Virtual: testBond("802.3ad"), Members: []string{"eth0", "eth1"}, MTU: 9000})},
			{says: "another mode of the bond: the VLAN goes with it, and is created again", config: links(
				LinkConfig{Name: "mgmt", Virtual: testVLAN("uplink", 100), Addresses: prefixes("10.1.0.5/24")}, uplink(testBond("active-backup"), "eth0", "eth1"))},
			{says: "nothing", config: links(LinkConfig{Name: "eth0"})},
		}},
	}
}

// randomVirtualStage creates a configuration of three links, some of which belong to a bond, and
// VLANs, on the addresses and routes of randomStage.
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
	for _, id := range []int{100, 200} {
		if len(use) > 0 && r.IntN(2) == 0 {
			name := fmt.Sprintf("vlan%d", id)
			virtual[name] = testVLAN(pick(use), id+r.IntN(2))
			use = append(use, name)
		}
	}
	s := randomStage(r, use)
	for i := range s.config.Links {
		s.config.Links[i].AcceptRA = false
		s.config.Links[i].MTU = 0
	}
	for name, v := range virtual {
		i := slices.IndexFunc(s.config.Links, func(l LinkConfig) bool { return l.Name == name })
		if i < 0 {
			i = len(s.config.Links)
			s.config.Links = append(s.config.Links, LinkConfig{Name: name})
		}
		l := &s.config.Links[i]
		l.Virtual, l.Members = v, members[name]
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

// TestVirtualLaws checks the laws with created links: after the operations nothing is left; a
// restart after any operation converges; the former configuration leads back.
func TestVirtualLaws(t *testing.T) {
	for seed := range uint64(300) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 2))
			names := []string{"eth0", "eth1", "eth2"}
			checkLaws(t, newFake(veth("eth0"), veth("eth1"), veth("eth2")), r, names, 12, randomVirtualStage)
		})
	}
}

// TestReturn checks that the former configuration restores the former state of the kernel.
func TestReturn(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 3))
		names := []string{"eth0", "eth1", "eth2"}
		checkReturn(t, newFake(veth("eth0"), veth("eth1"), veth("eth2")), r, names, randomVirtualStage)
	}
}

// checkReturn applies three configurations, of which the third is the first again, and compares the
// state of the kernel.
func checkReturn(t *testing.T, m machine, r *rand.Rand, names []string, random func(*rand.Rand, []string) stage) {
	t.Helper()
	former := formerMTUs{}
	first, second := random(r, names), random(r, names)
	var states []string
	for n, s := range []stage{first, second, first} {
		s.former = former
		do(t, m, s, settle(t, m, s), n)
		if left := settle(t, m, s); len(left) > 0 {
			t.Fatalf("left to do: %v\nconfiguration: %+v", left, s.config)
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

// fingerprint describes the managed links, their addresses and routes without indexes and MACs.
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
	for _, r := range have.Routes {
		r.OnLink = false // see Route
		lines = append(lines, r.String())
	}
	slices.Sort(lines)
	return fmt.Sprintln(lines)
}

// TestMemberMAC checks that a bond has the MAC of its first member, and that hardware is selected by
// its permanent MAC, which the bond does not change.
func TestMemberMAC(t *testing.T) {
	eth0, eth1 := card("eth0", "02:00:00:00:00:01"), card("eth1", "02:00:00:00:00:02")
	eth0.Index, eth1.Index = 2, 3
	c := Config{Links: []LinkConfig{{Name: "bond0", Virtual: testBond("active-backup"), Members: []string{"02:00:00:00:00:02", "eth0"}}}}
	first := func(links ...Link) WantLink { return planLinks(c, Facts{Links: links})[0] }
	if got := first(eth0, eth1).MAC; got != eth1.MAC {
		t.Errorf("the bond's MAC is %s", got)
	}
	eth1.Permanent, eth1.MAC = eth1.MAC, eth0.MAC
	want := planLinks(c, Facts{Links: []Link{eth0, eth1}})
	for _, name := range []string{"eth0", "eth1"} {
		if i := slices.IndexFunc(want, func(w WantLink) bool { return w.Name == name }); i < 0 || want[i].Master != "bond0" {
			t.Errorf("%s is not a member: %+v", name, want)
		}
	}
	missing := Missing(Config{Links: []LinkConfig{{Name: "bond0", Virtual: testBond("active-backup"), Members: []string{"eth0", "eth9", "enp*"}}, {Name: "eth8.5", Virtual: testVLAN("eth8", 5)}}}, Facts{Links: []Link{eth0}})
	if want := []string{"eth9", "enp*", "eth8"}; !slices.Equal(missing, want) {
		t.Errorf("missing %q, want %q", missing, want)
	}
}
