package network

import (
	"maps"
	"net/netip"
	"reflect"
	"testing"

	"github.com/orlop-os/orlop/machined/network/dhcp"
)

// TestRefusedMTU checks that all other operations succeed if the hardware rejects the MTU.
func TestRefusedMTU(t *testing.T) {
	f := newFake(veth("eth0"))
	f.mostMTU = 1500
	s := stage{former: formerMTUs{}, config: Config{Links: []LinkConfig{{Name: "eth0", MTU: 9000, Addresses: prefixes("10.0.0.5/24"), Routes: []RouteConfig{route("0.0.0.0/0", "10.0.0.1", 0)}}}}}
	failed := 0
	for _, o := range settle(t, f, s) {
		if f.Do(o) != nil {
			failed++
		}
	}
	left := settle(t, f, s)
	if want := (Op{Verb: SetLink, Link: "eth0", Index: 2, MTU: 9000}); failed != 1 || !reflect.DeepEqual(left, []Op{want}) {
		t.Errorf("%d operations failed, and the operations %v remain; want 1 and %v", failed, left, want)
	}
	if !f.link(2).Up || len(f.have.Addresses) != 1 || len(f.have.Routes) != 1 {
		t.Errorf("the link is not up, or its address or route is missing: %+v", f.have)
	}
}

// TestFormerMTUs checks that record stores the original MTU of a link at the first change, and
// deletes it when the link has this MTU again or does not exist any more.
func TestFormerMTUs(t *testing.T) {
	f := formerMTUs{}
	for _, step := range []struct {
		says      string
		have, set int // the present MTU, and the MTU that an operation sets (0: none)
		want      formerMTUs
	}{
		{"no operation", 1500, 0, formerMTUs{}},
		{"a first change, which the hardware rejects", 1500, 9000, formerMTUs{2: 1500}},
		{"another change, which succeeds", 1500, 1400, formerMTUs{2: 1500}},
		{"no operation after the change", 1400, 0, formerMTUs{2: 1500}},
		{"a second change", 1400, 1300, formerMTUs{2: 1500}},
		{"the change to the original MTU", 1300, 1500, formerMTUs{2: 1500}},
		{"no operation at the original MTU", 1500, 0, formerMTUs{}},
		{"another change", 1500, 1400, formerMTUs{2: 1500}},
	} {
		var ops []Op
		if step.set != 0 {
			ops = []Op{{Verb: SetLink, Index: 2, MTU: step.set}}
		}
		f.record([]Link{{Index: 1, MTU: 65536}, {Index: 2, MTU: step.have}}, ops)
		if !maps.Equal(f, step.want) {
			t.Errorf("%s: %v, want %v", step.says, f, step.want)
		}
	}
	if f.record(nil, nil); len(f) > 0 {
		t.Errorf("the record contains a link that does not exist any more: %v", f)
	}
}

// TestLeavingMember checks the planned MTU of a VLAN on a link that leaves its bond: the MTU that
// the kernel restores on the link, and not the MTU of the bond.
func TestLeavingMember(t *testing.T) {
	bond := Link{Name: "bond0", Index: 3, Own: true, Kind: kindBond, Virtual: testBond("802.3ad"), MTU: 9000}
	member := veth("eth0")
	member.Index, member.Master, member.MTU = 2, "bond0", 9000
	f := Facts{Links: []Link{member, bond}}
	vlanMTU := func(c Config) int {
		t.Helper()
		for _, w := range planLinks(c, f) {
			if w.Name == "vlan7" {
				return w.MTU
			}
		}
		t.Fatal("the VLAN is not planned")
		return 0
	}
	alone := on(LinkConfig{Name: "eth0"}, vlanLink("vlan7", "eth0", 7))
	if got := vlanMTU(alone); got != ethernetMTU {
		t.Errorf("without a record of the original MTU: %d", got)
	}
	f.MTUs = map[int]int{2: 1400}
	if got := vlanMTU(alone); got != 1400 {
		t.Errorf("with an original MTU of 1400: %d", got)
	}
	f.MTUs, f.Links[0].Master = nil, ""
	if got := vlanMTU(alone); got != 9000 {
		t.Errorf("on a link without a bond: %d", got)
	}
}

// TestLeasedMTU checks the MTU of a link with a lease. The MTU of the lease is not used if the
// configuration has an MTU, or if it is too small for the IPv6 of the link.
func TestLeasedMTU(t *testing.T) {
	static6 := []netip.Prefix{netip.MustParsePrefix("2001:db8::5/64")}
	for _, test := range []struct {
		says   string
		config LinkConfig
		leased int
		want   int
	}{
		{"MTU of the lease", LinkConfig{}, 1400, 1400},
		{"configured MTU", LinkConfig{MTU: 1450}, 1400, 1450},
		{"no MTU", LinkConfig{}, 0, 1500},
		{"small, without IPv6", LinkConfig{}, 576, 576},
		{"too small for a static IPv6 address", LinkConfig{Addresses: static6}, 1279, 1500},
		{"enough for a static IPv6 address", LinkConfig{Addresses: static6}, 1280, 1280},
		{"too small for router advertisements", LinkConfig{IPv6: LinkIPv6{AcceptRA: true}}, 576, 1500},
	} {
		test.config.Name, test.config.DHCP4 = "eth0", true
		l := lease("10.0.0.5/24", "")
		l.MTU = test.leased
		f := Facts{Links: newFake(veth("eth0")).have.Links, Leases: map[string]*dhcp.Lease{"eth0": l}, MTUs: map[int]int{2: 1500}}
		if got := Plan(Config{Links: []LinkConfig{test.config}}, f).Links[0].MTU; got != test.want {
			t.Errorf("%s: %d, want %d", test.says, got, test.want)
		}
	}
}
