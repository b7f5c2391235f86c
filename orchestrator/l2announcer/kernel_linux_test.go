package l2announcer

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/orlop-os/orlop/orchestrator/neighbor"
	"github.com/orlop-os/orlop/pkg/kernel/rtnl/rtnltest"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// station is a node of the test: an agent in its own network namespace, whose link is connected to
// a port of the bridge.
type station struct {
	*rtnltest.Namespace
	agent *agent
	mac   neighbor.MAC
	port  netlink.Link // the port of the bridge
	says  string
}

// newStation returns a node whose link to the bridge has the addresses own. It waits until the
// agent has read the link with both of its networks.
func newStation(t *testing.T, bridge netlink.Link, name string, own ...string) *station {
	t.Helper()
	s := &station{Namespace: rtnltest.NewOther(t)}
	rtnltest.Veth(t, name, name+"-eth0")
	port, err := netlink.LinkByName(name)
	must(t, err)
	must(t, netlink.LinkSetMaster(port, bridge))
	must(t, netlink.LinkSetUp(port))
	s.port = port
	s.MoveLink(t, name+"-eth0")
	spec := nodespec.Spec{Node: nodespec.Node{Name: name}}
	for _, prefix := range own {
		spec.Node.IPs = append(spec.Node.IPs, netip.MustParsePrefix(prefix).Addr())
	}
	s.agent = newAgent(spec, nil)
	t.Cleanup(s.agent.ports.Close)
	s.Do(func() {
		rtnltest.AddAddresses(t, name+"-eth0", own...)
		// Every node of a cluster forwards packets.
		for _, file := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
			must(t, os.WriteFile(filepath.Join("/proc/sys/net", file), []byte("1"), 0))
		}
	})
	await(t, "the link of "+name, func() bool {
		s.Do(func() { must(t, s.agent.relink()) })
		return len(s.agent.links) == 1 && len(s.agent.links[0].Networks) == 2
	})
	s.mac = s.agent.links[0].MAC
	return s
}

// newBridge creates the bridge that connects the nodes. The bridge has addresses, so this kernel is
// the neighbor that resolves the addresses of Services. The bridge needs a fixed MAC: by default
// the kernel uses the lowest MAC of its ports, and deletes the neighbor entries of the bridge when
// a new port changes that MAC.
func newBridge(t *testing.T) netlink.Link {
	t.Helper()
	must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0", HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}}}))
	bridge, err := netlink.LinkByName("br0")
	must(t, err)
	rtnltest.AddAddresses(t, "br0", "192.0.2.5/24", "2001:db8::5/64")
	return bridge
}

// win makes the node win these addresses, and runs a step of the node. To this end, it replaces the
// data of the node: its own Node is the only one, and a Service has the addresses.
func (s *station) win(t *testing.T, addresses ...netip.Addr) {
	t.Helper()
	s.setData([]Node{{Name: s.agent.spec.Node.Name, Ready: true}}, addresses)
	s.step(t, time.Now())
}

// setData replaces the data of the node by these Nodes and a Service with these addresses.
func (s *station) setData(nodes []Node, addresses []netip.Addr) {
	s.agent.nodes, s.agent.services, s.agent.candidates = nodes, []Service{{Addresses: addresses}}, nil
}

func (s *station) step(t *testing.T, now time.Time) {
	t.Helper()
	for more := true; more; {
		select {
		case c := <-s.agent.ports.Heard:
			s.agent.heard = append(s.agent.heard, c)
		case f := <-s.agent.ports.Failed:
			s.agent.ports.Drop(f)
		default:
			more = false
		}
	}
	s.Do(func() {
		if says := s.agent.step(now); says != s.says {
			s.says = says
			t.Logf("%s: %s", s.agent.spec.Node.Name, says)
		}
	})
}

// The function until repeats steps of the nodes until the function done returns true.
func until(t *testing.T, event string, nodes []*station, done func() bool) {
	t.Helper()
	since := time.Now()
	await(t, event, func() bool {
		for _, s := range nodes {
			s.Do(func() { must(t, s.agent.relink()) })
			s.step(t, time.Now())
		}
		return done()
	})
	t.Logf("%s, after %v", event, time.Since(since))
}

// TestKernel runs two nodes and a neighbor on a bridge. By ARP and NDP, the neighbor resolves an
// address to the MAC of the node that won the address. When the address moves, the announcement of
// the new node updates the neighbor's entry, and the previous node no longer answers. A node that
// is cut off from the API server detects on the link that another node has taken over its
// addresses.
func TestKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	runtime.LockOSThread()
	bridge := newBridge(t)
	a := newStation(t, bridge, "a", "192.0.2.11/24", "2001:db8::11/64")
	b := newStation(t, bridge, "b", "192.0.2.12/24", "2001:db8::12/64")
	both := []netip.Addr{vip4, vip6}

	a.win(t, both...)
	for _, v := range both {
		resolve(t, bridge, v, a.mac)
	}
	a.Do(func() {
		all, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
		must(t, err)
		for _, one := range all {
			if ip, _ := netip.AddrFromSlice(one.IP); ip.Unmap() == vip4 || ip == vip6 {
				t.Errorf("%s is an address of the machine's kernel", ip)
			}
		}
	})

	a.win(t)
	b.win(t, both...)
	for _, v := range both {
		until(t, v.String()+" moves", []*station{b}, func() bool { return known(t, bridge, v).mac == b.mac })
		probe(t, bridge, v, b.mac)
		forget(t, bridge, v)
		resolve(t, bridge, v, b.mac)
	}

	// Node b loses the API server. It continues to answer until node a takes over.
	b.agent.stale = true
	b.step(t, time.Now().Add(time.Minute))
	if got := b.agent.claims.answered(); len(got) != 2 {
		t.Errorf("node b, cut off from the API server, answers for %v before another node does", got)
	}
	a.win(t, both...)
	await(t, "b yields its addresses to a", func() bool {
		b.step(t, time.Now())
		return len(b.agent.claims.answered()) == 0
	})
	for _, v := range both {
		until(t, v.String()+" moves back", []*station{a}, func() bool { return known(t, bridge, v).mac == a.mac })
		forget(t, bridge, v)
		resolve(t, bridge, v, a.mac)
	}

	// Node b reaches the API server again and learns that it has lost its addresses.
	b.agent.stale = false
	b.win(t)

	// Node c had the addresses and was cut off from the API server and from node a. It probes until
	// a hears a probe and answers. The bridge may drop the first probe, because it begins to
	// forward for a new port only some time after the link is up.
	c := newStation(t, bridge, "c", "192.0.2.13/24", "2001:db8::13/64")
	c.setData([]Node{{Name: "c", Ready: true}}, both)
	c.agent.stale, c.agent.claims = true, claims{vip4: {announced: announcements}, vip6: {announced: announcements}}
	now := time.Now()
	await(t, "c yields its addresses to a", func() bool {
		if len(c.agent.claims.answered()) > 0 {
			now = now.Add(neighbor.AnnounceInterval)
		}
		c.step(t, now)
		return len(c.agent.claims.answered()) == 0
	})
	for _, v := range both {
		if got := known(t, bridge, v).mac; got != a.mac {
			t.Errorf("%s is at %x, want %x: the probes of c must not change the neighbor's entry", v, got, a.mac)
		}
	}
}

// TestKernelGone runs two nodes and a neighbor on a bridge. The election gives some addresses to
// each node. The API server reports both nodes as ready all the time. While the announcer of a node
// does not run, its kernel answers, and no address moves. When the link of a node is down, the
// other node takes its addresses, and when the link is up again, the node gets them back. Node b
// announces itself with an IPv6 address, node a with an IPv4 address.
func TestKernelGone(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	runtime.LockOSThread()
	bridge := newBridge(t)
	a := newStation(t, bridge, "a", "192.0.2.11/24", "2001:db8::11/64")
	b := newStation(t, bridge, "b", "2001:db8::12/64", "192.0.2.12/24")
	both := []*station{a, b}
	var nodes []Node
	for _, s := range both {
		nodes = append(nodes, Node{Name: s.agent.spec.Node.Name, Ready: true, Addresses: s.agent.spec.Node.IPs})
	}
	addresses := append(many(8), vip6, vip6.Next(), vip6.Next().Next())
	shares := map[*station][]netip.Addr{}
	for _, s := range both {
		s.setData(nodes, addresses)
		shares[s] = Elect(s.agent.spec.Node.Name, nodes, s.agent.services)
	}
	answersFor := func(s *station, want []netip.Addr) bool { return slices.Equal(s.agent.claims.answered(), want) }
	shared := func() bool {
		return answersFor(a, shares[a]) && answersFor(b, shares[b]) && len(a.agent.peers.heard)+len(b.agent.peers.heard) == 2
	}
	all := slices.SortedFunc(slices.Values(addresses), netip.Addr.Compare)

	until(t, "the nodes hear each other", both, shared)
	for i, gone := range both {
		name, other := gone.agent.spec.Node.Name, both[1-i]
		sample := shares[gone][0]
		resolve(t, bridge, sample, gone.mac)
		solicited := 0
		since := time.Now()
		until(t, "the announcer of "+name+" does not run", []*station{other}, func() bool {
			if quiet := other.agent.peers.heard[name].quiet; quiet > neighbor.ProbeAfter {
				solicited++
			}
			return time.Since(since) > 2*neighbor.TakeOverAfter
		})
		if !answersFor(other, shares[other]) || solicited == 0 {
			t.Errorf("%s answers for %v while the kernel of %s works, and solicited it in %d steps", other.agent.spec.Node.Name, other.agent.claims.answered(), name, solicited)
		}

		must(t, netlink.LinkSetDown(gone.port))
		until(t, "the addresses of "+name+" move", []*station{other}, func() bool { return answersFor(other, all) })
		until(t, sample.String()+" moves", []*station{other}, func() bool { return known(t, bridge, sample).mac == other.mac })

		must(t, netlink.LinkSetUp(gone.port))
		until(t, name+" is back", both, shared)
		until(t, sample.String()+" moves back", both, func() bool { return known(t, bridge, sample).mac == gone.mac })
	}
}

// entry is the entry for an address in the neighbor's kernel. The zero value means that there is no
// entry with a MAC.
type entry struct {
	mac   neighbor.MAC
	state int
}

func known(t *testing.T, link netlink.Link, a netip.Addr) entry {
	t.Helper()
	family := netlink.FAMILY_V6
	if a.Is4() {
		family = netlink.FAMILY_V4
	}
	all, err := netlink.NeighList(link.Attrs().Index, family)
	must(t, err)
	for _, n := range all {
		if ip, _ := netip.AddrFromSlice(n.IP); ip.Unmap() == a && len(n.HardwareAddr) == len(neighbor.MAC{}) {
			return entry{neighbor.MAC(n.HardwareAddr), n.State}
		}
	}
	return entry{}
}

// ask sends a packet to an address, which makes the neighbor's kernel resolve the address. ask does
// not wait for the reply. It returns the MAC of the present entry, or the zero MAC.
func ask(t *testing.T, link netlink.Link, a netip.Addr) neighbor.MAC {
	t.Helper()
	// Dial fails while the link is down, because the address then has no route.
	if conn, err := net.Dial("udp", netip.AddrPortFrom(a, 9).String()); err == nil {
		_, _ = conn.Write([]byte("?"))
		conn.Close()
	}
	return known(t, link, a).mac
}

// resolve repeats ask until it returns a MAC. The MAC must be want.
func resolve(t *testing.T, link netlink.Link, a netip.Addr, want neighbor.MAC) {
	t.Helper()
	await(t, a.String()+" is resolved", func() bool { return ask(t, link, a) != neighbor.MAC{} })
	if got := known(t, link, a).mac; got != want {
		t.Errorf("%s is at %x, want %x", a, got, want)
	}
}

// probe makes the neighbor's kernel confirm its entry for an address by a unicast request. Only the
// node whose MAC is owner receives this request.
func probe(t *testing.T, link netlink.Link, a netip.Addr, owner neighbor.MAC) {
	t.Helper()
	must(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, IP: a.AsSlice(), HardwareAddr: owner[:], State: netlink.NUD_PROBE}))
	await(t, a.String()+" is confirmed", func() bool { return known(t, link, a).state == netlink.NUD_REACHABLE })
}

func forget(t *testing.T, link netlink.Link, a netip.Addr) {
	t.Helper()
	must(t, netlink.NeighDel(&netlink.Neigh{LinkIndex: link.Attrs().Index, IP: a.AsSlice()}))
}

// await polls a condition until it is true. After 10 seconds it fails the test.
func await(t *testing.T, event string, done func() bool) {
	t.Helper()
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within 10 seconds: %s", event)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
