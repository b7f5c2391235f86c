package loadbalancer

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

const v4, v6 = corev1.IPv4Protocol, corev1.IPv6Protocol

func addrs(words ...string) []netip.Addr {
	var all []netip.Addr
	for _, w := range words {
		all = append(all, netip.MustParseAddr(w))
	}
	return all
}

// pool returns a pool with one range for each pair of addresses.
func pool(name string, ends ...string) nodespec.Pool {
	p := nodespec.Pool{Name: name}
	for pair := range slices.Chunk(addrs(ends...), 2) {
		p.Ranges = append(p.Ranges, nodespec.Range{First: pair[0], Last: pair[1]})
	}
	return p
}

// service returns a managed Service that was created at second n.
func service(n int, families ...corev1.IPFamily) Service {
	return Service{Key: fmt.Sprintf("default/s%d", n), Created: time.Unix(int64(n), 0), Managed: true, Families: families}
}

func (s Service) having(words ...string) Service { s.Has = addrs(words...); return s }
func (s Service) asking(words ...string) Service {
	s.Wanted, s.WantedBy = addrs(words...), "the annotation "+AddressAnnotation
	return s
}
func (s Service) from(pool string) Service          { s.Pool = pool; return s }
func (s Service) but(change func(*Service)) Service { change(&s); return s }

func TestStep(t *testing.T) {
	a, b := pool("a", "192.0.2.10", "192.0.2.11"), pool("b", "192.0.2.20", "192.0.2.20", "2001:db8::1", "2001:db8::2")
	closed := pool("closed", "192.0.2.30", "192.0.2.31")
	closed.OnRequest = true
	foreign := Service{Key: "other/f"}.having("192.0.2.10")
	for _, c := range []struct {
		name  string
		input Input
		want  string // the output of show
	}{
		{"nothing", Input{}, ""},
		{"the oldest first", Input{Pools: []nodespec.Pool{a}, Services: []Service{service(3, v4), service(1, v4), service(2, v4)}},
			"s1 192.0.2.10; s2 192.0.2.11; s3 PoolFull"},
		{"the next pool, because the first is full", Input{Pools: []nodespec.Pool{a, b}, Services: []Service{service(1, v4).having("192.0.2.10"), service(2, v4), service(3, v4)}},
			"s1 192.0.2.10; s2 192.0.2.11; s3 192.0.2.20"},
		{"an assigned address stays, also if another Service is older", Input{Pools: []nodespec.Pool{a}, Services: []Service{service(1, v4), service(2, v4).having("192.0.2.10")}},
			"s1 192.0.2.11; s2 192.0.2.10"},
		{"two Services have the same address", Input{Pools: []nodespec.Pool{a}, Services: []Service{service(1, v4).having("192.0.2.11"), service(2, v4).having("192.0.2.11")}},
			"s1 192.0.2.11; s2 192.0.2.10"},
		{"both families, in the Service's order", Input{Pools: []nodespec.Pool{a, b}, Services: []Service{service(1, v6, v4)}}, "s1 2001:db8::1,192.0.2.10"},
		{"two families preferred, and a pool for one", Input{Pools: []nodespec.Pool{a}, Services: []Service{service(1, v6, v4)}}, "s1 192.0.2.10"},
		{"two families required, and a pool for one", Input{Pools: []nodespec.Pool{a}, Services: []Service{service(1, v4, v6).but(func(s *Service) { s.DualOnly = true })}},
			"s1 192.0.2.10 NoPoolOfFamily"},
		{"no pool of the only family", Input{Pools: []nodespec.Pool{a}, Services: []Service{service(1, v6)}}, "s1 NoPoolOfFamily"},
		{"an address of a family that was removed", Input{Pools: []nodespec.Pool{a, b}, Services: []Service{service(1, v4).having("192.0.2.10", "2001:db8::1")}}, "s1 192.0.2.10"},
		{"an address is requested", Input{Pools: []nodespec.Pool{a}, Services: []Service{service(1, v4), service(2, v4).asking("192.0.2.10")}}, "s1 192.0.2.11; s2 192.0.2.10"},
		{"an address in use is requested", Input{Pools: []nodespec.Pool{a}, Services: []Service{service(1, v4).asking("192.0.2.10"), service(2, v4).having("192.0.2.10")}},
			"s1 AddressInUse; s2 192.0.2.10"},
		{"an address in use is requested, and the Service retains its own", Input{Pools: []nodespec.Pool{a}, Services: []Service{
			service(1, v4).asking("192.0.2.10").having("192.0.2.11"), service(2, v4).having("192.0.2.10")}}, "s1 192.0.2.11 AddressInUse; s2 192.0.2.10"},
		{"an address in no pool is requested", Input{Pools: []nodespec.Pool{a}, Services: []Service{service(1, v4).asking("192.0.2.99")}}, "s1 AddressNotInPool"},
		{"an address in another pool is requested", Input{Pools: []nodespec.Pool{a, b}, Services: []Service{service(1, v4).asking("192.0.2.20").from("a")}}, "s1 AddressNotInPool"},
		{"an address for one of two families is requested", Input{Pools: []nodespec.Pool{a, b}, Services: []Service{service(1, v4, v6).asking("2001:db8::2")}}, "s1 192.0.2.10,2001:db8::2"},
		{"a pool is requested", Input{Pools: []nodespec.Pool{a, b}, Services: []Service{service(1, v4).from("b")}}, "s1 192.0.2.20"},
		{"a missing pool is requested", Input{Pools: []nodespec.Pool{a, b}, Services: []Service{service(1, v4, v6).from("c")}}, "s1 NoPool"},
		{"a pool is requested, and the Service has an address of another pool", Input{Pools: []nodespec.Pool{a, b}, Services: []Service{service(1, v4).from("b").having("192.0.2.10"), service(2, v4)}},
			"s1 192.0.2.20; s2 192.0.2.11"},
		{"a pool on request", Input{Pools: []nodespec.Pool{closed}, Services: []Service{service(1, v4), service(2, v4).from("closed"), service(3, v4).asking("192.0.2.31")}},
			"s1 NoPool; s2 192.0.2.30; s3 192.0.2.31"},
		{"a pool on request, and the Service has an address of it", Input{Pools: []nodespec.Pool{closed}, Services: []Service{service(1, v4).having("192.0.2.31")}}, "s1 192.0.2.31"},
		{"a removed pool", Input{Pools: []nodespec.Pool{b}, Services: []Service{service(1, v4).having("192.0.2.10")}}, "s1 192.0.2.20"},
		{"an address of a control-plane machine", Input{Pools: []nodespec.Pool{a}, Machines: addrs("192.0.2.10"), Services: []Service{service(1, v4).having("192.0.2.10"), service(2, v4)}},
			"s1 192.0.2.11; s2 PoolFull"},
		{"an address that a Node states", Input{Pools: []nodespec.Pool{a}, Nodes: addrs("192.0.2.10"), Services: []Service{service(1, v4), service(2, v4)}},
			"s1 192.0.2.11; s2 PoolFull"},
		{"Nodes state addresses that Services have", Input{Pools: []nodespec.Pool{a}, Nodes: addrs("192.0.2.10", "192.0.2.11"), Services: []Service{
			service(1, v4).having("192.0.2.10"), service(2, v4).asking("192.0.2.11"), service(3, v4).having("192.0.2.11").asking("192.0.2.11")}},
			"s1 192.0.2.10 AddressOfMachine; s2 AddressInUse; s3 192.0.2.11 AddressOfMachine"},
		{"a Node states the address of a Service with a port of machines", Input{Pools: []nodespec.Pool{a}, Nodes: addrs("192.0.2.10"), Services: []Service{
			service(1, v4).having("192.0.2.10").but(func(s *Service) { s.MachinePort = true })}}, "s1 192.0.2.11"},
		{"no pools", Input{Now: time.Unix(40, 0), Services: []Service{
			service(1, v4), service(11, v4), service(12, v4).but(func(s *Service) { s.Explicit = true }), service(2, v4).having("192.0.2.9")}},
			"s1 NoPool; s2; s11; s12 NoPool"},
		{"addresses of another implementation", Input{Pools: []nodespec.Pool{a}, Services: []Service{foreign, service(1, v4)}}, "s1 192.0.2.11"},
		{"Services that are being deleted", Input{Pools: []nodespec.Pool{a}, Services: []Service{
			service(1, v4).having("192.0.2.10").but(func(s *Service) { s.Ending = true }), service(2, v4).but(func(s *Service) { s.Ending = true })}}, "s1 192.0.2.10; s2"},
		{"an invalid request", Input{Pools: []nodespec.Pool{a}, Services: []Service{
			service(1, v4).having("192.0.2.11").but(func(s *Service) { s.Invalid = "?" }), service(2, v4).but(func(s *Service) { s.Invalid = "?" })}},
			"s1 192.0.2.11 BadRequest; s2 BadRequest"},
		{"the last IPv4 address", Input{Pools: []nodespec.Pool{pool("end", "255.255.255.255", "255.255.255.255")}, Services: []Service{service(1, v4), service(2, v4)}},
			"s1 255.255.255.255; s2 PoolFull"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := show(Step(c.input)); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func show(decisions []Decision) string {
	var all []string
	for _, d := range decisions {
		text := strings.TrimPrefix(d.Key, "default/")
		if len(d.Addresses) > 0 {
			text += " " + strings.ReplaceAll(joinAddresses(d.Addresses), ", ", ",")
		}
		for _, p := range d.Problems {
			text += " " + p.Reason
		}
		all = append(all, text)
	}
	return strings.Join(all, "; ")
}

// TestMessages checks that each message states the problem and a remedy.
func TestMessages(t *testing.T) {
	w := Input{Pools: []nodespec.Pool{pool("a", "192.0.2.10", "192.0.2.10"), pool("b", "2001:db8::1", "2001:db8::1")}, Services: []Service{
		service(1, v4).having("192.0.2.10"), service(2, v4), service(3, v6).from("a"), service(4, v4).from("c"),
		service(5, v4).asking("192.0.2.10"), service(6, v4).asking("192.0.2.9"), service(7, v6).asking("2001:db8::1").from("a"),
	}}
	var got []string
	for _, d := range Step(w) {
		for _, p := range d.Problems {
			got = append(got, p.Message)
		}
	}
	want := []string{
		"no IPv4 address is free in a: enlarge it in Cluster.spec.networks.loadBalancer.pools, or delete a Service that needs none",
		"no pool that this Service may use has IPv6 addresses: add a range to Cluster.spec.networks.loadBalancer.pools, or remove IPv6 from the Service's ipFamilies",
		`pool "c" does not exist, only a, b: change the annotation orlop.dev/pool, or add the pool to Cluster.spec.networks.loadBalancer.pools`,
		"the address 192.0.2.10 cannot be assigned: the Service default/s1 has it; request another address with the annotation orlop.dev/address",
		"the address 192.0.2.9 cannot be assigned: no pool contains it; change the annotation orlop.dev/address, or the pools in Cluster.spec.networks.loadBalancer.pools",
		"the address 2001:db8::1 cannot be assigned: it belongs to pool b, not to a; change the annotation orlop.dev/address, or the pools in Cluster.spec.networks.loadBalancer.pools",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestSimulation creates, deletes and changes Services at random, changes pools and machines, and
// performs only a part of the decisions. It checks that no two Services have the same address, that
// a Service does not lose an address without a reason, and that each Service gets an address if a
// permitted address is free.
func TestSimulation(t *testing.T) {
	for seed := range uint64(200) {
		simulate(t, seed, rand.New(rand.NewPCG(seed, 31)))
	}
}

func simulate(t *testing.T, seed uint64, r *rand.Rand) {
	every := []nodespec.Pool{
		pool("a", "192.0.2.10", "192.0.2.14", "2001:db8::1", "2001:db8::3"), pool("b", "192.0.2.20", "192.0.2.22"), pool("c", "2001:db8::10", "2001:db8::12"),
	}
	every[2].OnRequest = true
	w := Input{Pools: every}
	families := [][]corev1.IPFamily{{v4}, {v6}, {v4, v6}, {v6, v4}}
	asked := []string{"", "", "", "a", "b", "c", "missing"}
	some := func() netip.Addr { p := every[r.IntN(3)]; return p.Ranges[r.IntN(len(p.Ranges))].First }
	for round := range 60 {
		servicesOnly := true // this round only creates or deletes a Service
		switch i := r.IntN(10); {
		case i < 5:
			w.Services = append(w.Services, service(int(seed)*1000+round, families[r.IntN(4)]...).from(asked[r.IntN(7)]))
		case len(w.Services) == 0:
		case i < 7:
			n := r.IntN(len(w.Services))
			w.Services = slices.Delete(w.Services, n, n+1)
		case i < 8:
			s := &w.Services[r.IntN(len(w.Services))]
			s.Wanted, servicesOnly = nil, false
			if a := some(); slices.Contains(s.Families, familyOf(a)) {
				s.Wanted = []netip.Addr{a}
			}
		case i < 9:
			w.Pools, servicesOnly = slices.Clone(every[:1+r.IntN(3)]), false
		default:
			w.Machines, servicesOnly = []netip.Addr{some()}, false
		}
		decisions := Step(w)
		if show(Step(w)) != show(decisions) {
			t.Fatalf("seed %d, round %d: the same input gave different decisions", seed, round)
		}
		for _, d := range decisions {
			s := w.find(d.Key)
			for _, had := range s.Has {
				if servicesOnly && s.Pool == "" && len(s.Wanted) == 0 && !slices.Contains(d.Addresses, had) && w.usable(had) {
					t.Fatalf("seed %d, round %d: %s lost %s without a reason", seed, round, d.Key, had)
				}
			}
			if r.IntN(5) > 0 { // in one of five cases the write of the decision is missing
				s.Has = d.Addresses
			}
		}
		if err := w.check(Step(w)); err != nil {
			t.Fatalf("seed %d, round %d: %v", seed, round, err)
		}
	}
	for range 3 { // each round can assign addresses that the round before released
		for _, d := range Step(w) {
			w.find(d.Key).Has = d.Addresses
		}
	}
	if again := Step(w); slices.ContainsFunc(again, func(d Decision) bool { return !slices.Equal(d.Addresses, w.find(d.Key).Has) }) {
		t.Fatalf("seed %d: the decisions still change after three rounds: %s", seed, show(again))
	}
}

func (w Input) find(key string) *Service {
	return &w.Services[slices.IndexFunc(w.Services, func(s Service) bool { return s.Key == key })]
}

// usable reports whether an address is in a pool and is no address of a machine.
func (w Input) usable(a netip.Addr) bool {
	return slices.ContainsFunc(w.Pools, func(p nodespec.Pool) bool { return p.Contains(a) }) && !slices.Contains(w.Machines, a)
}

// check returns an error if a decision assigns an address that another Service has, that is outside
// the pools, or that has a wrong family. It also returns an error if a Service gets no address
// although a permitted address is free.
func (w Input) check(decisions []Decision) error {
	owner := map[netip.Addr]string{}
	for _, d := range decisions {
		for _, a := range d.Addresses {
			if owner[a] != "" {
				return fmt.Errorf("%s is assigned to %s and to %s", a, owner[a], d.Key)
			}
			owner[a] = d.Key
			if s := w.find(d.Key); !w.usable(a) || !slices.Contains(s.Families, familyOf(a)) {
				return fmt.Errorf("%s has %s, which is not permitted for it", d.Key, a)
			}
		}
	}
	held := maps.Clone(owner) // also the addresses that the decisions release
	for _, s := range w.Services {
		for _, h := range s.Has {
			if o := held[h]; o != "" && o != s.Key {
				return fmt.Errorf("%s is in the status of %s, but %s owns it", h, s.Key, o)
			}
			held[h] = s.Key
		}
	}
	for _, d := range decisions {
		s := w.find(d.Key)
		for _, f := range s.Families {
			if s.wanted(f).IsValid() || slices.ContainsFunc(d.Addresses, func(a netip.Addr) bool { return familyOf(a) == f }) {
				continue
			}
			for _, p := range w.Pools {
				for _, r := range p.Ranges {
					for a := r.First; familyOf(a) == f && a.Compare(r.Last) <= 0; a = a.Next() {
						if (s.Pool == p.Name || s.Pool == "" && !p.OnRequest) && held[a] == "" && w.usable(a) {
							return fmt.Errorf("%s has no address although %s is free", d.Key, a)
						}
					}
				}
			}
		}
	}
	return nil
}

// TestLarge fills a pool of 65536 addresses. If Step searched each range from its start, this test
// would take minutes.
func TestLarge(t *testing.T) {
	w := Input{Pools: []nodespec.Pool{pool("large", "10.0.0.0", "10.0.255.255")}}
	for n := range 1 << 16 {
		w.Services = append(w.Services, service(n, v4))
	}
	seen := map[netip.Addr]bool{}
	for _, d := range Step(w) {
		for _, a := range d.Addresses {
			seen[a] = true
		}
	}
	if len(seen) != 1<<16 {
		t.Errorf("%d addresses are assigned, want all of 65536", len(seen))
	}
}
