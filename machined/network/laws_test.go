package network

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/machined/network/dhcp"
	"github.com/orlop-os/orlop/machined/network/dhcp6"
)

// randomStage returns a random configuration with leases. It selects from few addresses and routes,
// so conflicts are frequent. All links have the same IPv4 subnets. Each link has its own IPv6
// subnets, because the kernel rejects an IPv6 gateway in a subnet of another link.
func randomStage(r *rand.Rand, links []string) stage {
	s := stage{leases: map[string]*dhcp.Lease{}, leases6: map[string]*dhcp6.Lease{}}
	pick := func(list []string) string { return list[r.IntN(len(list))] }
	addresses := []string{"10.0.0.1/24", "10.0.0.2/24", "10.0.0.3/24", "10.0.0.1/16", "10.1.0.1/32", "2001:db8::1/64", "2001:db8::1/48", "2001:db8::2/64"}
	routes := []RouteConfig{
		route("0.0.0.0/0", "10.0.0.254", 0), route("0.0.0.0/0", "10.0.0.253", 5), route("0.0.0.0/0", "10.5.5.5", 6),
		route("10.7.0.0/16", "", 0), route("10.8.0.0/16", "10.7.0.1", 0), route("192.0.2.0/24", "10.0.0.9", 3),
		route("::/0", "2001:db8::fe", 0), route("::/0", "2001:db8::fd", 5), route("2001:db8:7::/48", "", 0), route("2001:db8:8::/48", "fe80::1", 0),
	}
	hostnames := []string{"", "one", "two.example.test"}
	s.config.Hostname = pick(hostnames)
	for n, name := range links {
		own := func(p string) string { return strings.Replace(p, "db8", fmt.Sprintf("db%d", n+8), 1) }
		if r.IntN(4) == 0 {
			continue
		}
		lc := LinkConfig{Name: name, MTU: []int{0, 1400, 1500}[r.IntN(3)], DHCP4: r.IntN(2) == 0, IPv6: LinkIPv6{AcceptRA: r.IntN(2) == 0}}
		for range r.IntN(4) {
			lc.Addresses = append(lc.Addresses, netip.MustParsePrefix(own(pick(addresses))))
		}
		for range r.IntN(4) {
			rc := routes[r.IntN(len(routes))]
			if rc.To.Addr().Is6() && rc.Via.IsValid() {
				rc.Via = netip.MustParseAddr(own(rc.Via.String()))
			}
			lc.Routes = append(lc.Routes, rc)
		}
		if r.IntN(2) == 0 {
			s.leases[name] = lease(pick(addresses[:5]), pick([]string{"", "10.0.0.254", "10.6.6.6"}))
		}
		if r.IntN(3) == 0 {
			lc.IPv6.DHCP6 = DHCP6Stateful
			if r.IntN(2) == 0 {
				lc.IPv6.Prefix = &Delegation{Length: 56, Subnets: []Subnet{{Link: pick(links), Number: uint64(r.IntN(300))}}}
			}
			s.leases6[name] = lease6(own(pick([]string{"2001:db8::1", "2001:db8::77"})), own(pick([]string{"", "2001:db8:9900::/56", "2001:db8:9900::/64"})))
		}
		s.config.Links = append(s.config.Links, lc)
	}
	return s
}

// checkLaws applies random stages to a machine and checks the two laws of a domain. First: after
// the operations of a diff, the next diff is empty. Second: if the machine stops at any operation,
// it converges after its restart. About half of the stages stop at a random operation.
func checkLaws(t *testing.T, m machine, r *rand.Rand, links []string, stages int, random func(*rand.Rand, []string) stage) {
	t.Helper()
	former := formerMTUs{}
	for n := range stages {
		s := random(r, links)
		s.former = former
		ops := settle(t, m, s)
		stop := len(ops)
		if r.IntN(2) == 0 && len(ops) > 0 {
			stop = r.IntN(len(ops))
		}
		do(t, m, s, ops[:stop], n)
		if stop < len(ops) {
			do(t, m, s, settle(t, m, s), n)
		}
		if left := settle(t, m, s); len(left) > 0 {
			t.Fatalf("stage %d, stopped after %d of %d operations and restarted: these operations remain: %v\nconfiguration: %+v\noperations: %v", n, stop, len(ops), left, s.config, ops)
		}
	}
}

// do performs the operations of stage n, each of them twice.
func do(t *testing.T, m machine, s stage, ops []Op, n int) {
	t.Helper()
	for _, o := range ops {
		// The second call must succeed and have no effect.
		for range 2 {
			if err := m.Do(o); err != nil {
				t.Fatalf("stage %d: %v\nconfiguration: %+v\noperations: %v", n, err, s.config, ops)
			}
		}
	}
}

// TestLaws checks the two laws (see checkLaws) on the fake machine, with 300 seeds.
func TestLaws(t *testing.T) {
	for seed := range uint64(300) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			checkLaws(t, newFake(veth("eth0"), veth("eth1"), veth("eth2")), r, []string{"eth0", "eth1", "eth2"}, 12, randomStage)
		})
	}
}
