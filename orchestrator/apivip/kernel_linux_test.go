package apivip

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/orchestrator/neighbor"
	"github.com/orlop-os/orlop/pkg/kernel/rtnl/rtnltest"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

var vip4, vip6 = netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8::9")

// station is a control-plane machine of the test: an agent in a separate namespace at a port of the
// bridge, a server in place of the API server that sends the machine's name, and a pod.
type station struct {
	*rtnltest.Namespace
	name  string
	pod   *rtnltest.Namespace
	agent *agent
	says  string
}

func newStation(t *testing.T, bridge netlink.Link, name string, planes []netip.Addr, own4, own6, pods string) *station {
	t.Helper()
	s := &station{Namespace: rtnltest.NewOther(t), name: name, pod: rtnltest.NewOther(t)}
	rtnltest.Veth(t, name, name+"-eth0")
	port, err := netlink.LinkByName(name)
	must(t, err)
	must(t, netlink.LinkSetMaster(port, bridge))
	must(t, netlink.LinkSetUp(port))
	rtnltest.Veth(t, name+"-pod", name+"-pods")
	s.MoveLink(t, name+"-eth0")
	s.MoveLink(t, name+"-pods")
	s.pod.MoveLink(t, name+"-pod")
	s.agent = newAgent(nodespec.Spec{
		Node:          nodespec.Node{Name: name, ControlPlane: true, IPs: []netip.Addr{netip.MustParseAddr(own4), netip.MustParseAddr(own6)}},
		ControlPlanes: planes, VirtualAddresses: []netip.Addr{vip4, vip6},
	})
	s.Do(func() {
		// Every node forwards packets.
		for _, file := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
			must(t, os.WriteFile(filepath.Join("/proc/sys/net", file), []byte("1"), 0))
		}
		rtnltest.AddAddresses(t, name+"-eth0", own4+"/24", own6+"/64")
		rtnltest.AddAddresses(t, name+"-pods", pods+".1/24")
		rtnltest.AddAddresses(t, "lo")
		socket, err := net.Listen("tcp", "[::]:6443")
		must(t, err)
		t.Cleanup(func() { socket.Close() })
		go serve(socket, name)
	})
	s.pod.Do(func() {
		rtnltest.AddAddresses(t, name+"-pod", pods+".2/24")
		must(t, netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(pods + ".1")}))
	})
	t.Cleanup(func() { s.Do(s.agent.close) })
	return s
}

// serve sends a name to each client, and then echoes.
func serve(socket net.Listener, name string) {
	for {
		conn, err := socket.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			if _, err := conn.Write([]byte(name)); err == nil {
				_, _ = io.Copy(conn, conn)
			}
		}()
	}
}

// stations are the machines of the test, which perform their steps together.
type stations []*station

// The method until lets all machines perform steps until the function met returns true.
func (all stations) until(t *testing.T, what string, met func() bool) {
	t.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(neighbor.StepInterval)
	defer tick.Stop()
	for {
		for _, s := range all {
			s.step(t)
		}
		if met() {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			for _, s := range all {
				t.Logf("%s: %s", s.name, s.says)
			}
			t.Fatalf("this did not happen: %s", what)
		}
	}
}

func (s *station) step(t *testing.T) {
	s.Do(func() {
		links, err := neighbor.ReadLinks()
		must(t, err)
		s.agent.links = links
		for more := true; more; {
			select {
			case c := <-s.agent.ports.Heard:
				s.agent.claims[c.Address] = append(s.agent.claims[c.Address], c)
			case f := <-s.agent.ports.Failed:
				s.agent.ports.Drop(f)
			default:
				more = false
			}
		}
		_, detail := s.agent.step(time.Now())
		if detail != s.says {
			t.Logf("%s: %s", s.name, detail)
		}
		s.says = detail
	})
}

func (s *station) answers() bool {
	return strings.Contains(s.says, "holds "+vip4.String()+" since") && strings.Contains(s.says, "holds "+vip6.String()+" since")
}

// place is the location of a client.
type place struct {
	name string
	do   func(func())
	v4   bool // the client has no IPv6 address
}

// connect returns the name of the machine at an address, and the connection.
func (p place) connect(t *testing.T, address netip.Addr) (who string, conn net.Conn, err error) {
	t.Helper()
	p.do(func() {
		if conn, err = net.DialTimeout("tcp", netip.AddrPortFrom(address, 6443).String(), time.Second); err != nil {
			return
		}
		t.Cleanup(func() { conn.Close() })
		must(t, conn.SetDeadline(time.Now().Add(5*time.Second)))
		b := make([]byte, 1)
		if _, err = io.ReadFull(conn, b); err == nil {
			who = string(b)
		}
	})
	return who, conn, err
}

// TestKernel has two control-plane machines on a bridge, and clients of the API: a host on the
// network, the machines' own programs, and pods. All clients reach the machine with the ready API
// server, over both address families. When the address moves, new connections go to the other
// machine, and old connections end at once.
func TestKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	runtime.LockOSThread()
	if err := writeRedirects([]redirect{{vip4, netip.MustParseAddr("192.0.2.11")}}); errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		t.Skipf("the kernel of this machine translates no addresses (%v); the product's does, and `make kernel` runs the test there", err)
	} else {
		must(t, err)
	}
	must(t, writeRedirects(nil))
	// A bridge without a fixed address takes the lowest address of its ports, and drops its
	// neighbor entries when a new port changes it.
	must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0", HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}}}))
	bridge, err := netlink.LinkByName("br0")
	must(t, err)
	rtnltest.AddAddresses(t, "br0", "192.0.2.5/24", "2001:db8::5/64")
	planes := []netip.Addr{netip.MustParseAddr("192.0.2.11"), netip.MustParseAddr("192.0.2.12")}
	a := newStation(t, bridge, "a", planes, "192.0.2.11", "2001:db8::11", "10.244.1")
	b := newStation(t, bridge, "b", planes, "192.0.2.12", "2001:db8::12", "10.244.2")
	a.Do(func() { route(t, "10.244.2.0/24", "192.0.2.12") })
	b.Do(func() { route(t, "10.244.1.0/24", "192.0.2.11") })
	both := stations{a, b}
	places := []place{
		{"the network", func(f func()) { f() }, false},
		{"a", a.Do, false}, {"b", b.Do, false}, {"a pod of a", a.pod.Do, true}, {"a pod of b", b.pod.Do, true},
	}
	ready := func(of ...string) {
		for _, s := range both {
			for i, address := range planes {
				s.agent.servers[address] = APIServer{Ready: slices.Contains(of, both[i].name)}
			}
		}
	}
	// reach checks that all clients reach a machine, and returns the connections.
	reach := func(want string) map[string]net.Conn {
		t.Helper()
		all := map[string]net.Conn{}
		for _, p := range places {
			for _, address := range []netip.Addr{vip4, vip6} {
				if p.v4 && address.Is6() {
					continue
				}
				both.until(t, p.name+" reaches "+want+" at "+address.String(), func() bool {
					who, conn, err := p.connect(t, address)
					if err != nil {
						t.Logf("%s: %v", p.name, err)
					} else if who != want {
						t.Logf("%s reaches %s", p.name, who)
					}
					all[p.name+" "+address.String()] = conn
					return err == nil && who == want
				})
			}
		}
		return all
	}
	// ended checks that connections have ended, as a sending client notices.
	ended := func(all map[string]net.Conn) {
		t.Helper()
		for name, conn := range all {
			must(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
			_, err := conn.Write([]byte("?"))
			if err == nil {
				_, err = conn.Read(make([]byte, 1))
			}
			if !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.EPIPE) {
				t.Errorf("%s: a connection to the former holder of the address: %v; want a reset", name, err)
			}
		}
	}

	ready("a", "b")
	both.until(t, "a answers", a.answers)
	first := reach("a")
	if want := "192.0.2.11 holds 192.0.2.9; 192.0.2.11 holds 2001:db8::9"; b.says != want {
		t.Errorf("the status of b is %q, want %q", b.says, want)
	}
	a.Do(func() {
		all, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
		must(t, err)
		for _, one := range all {
			if ip, _ := netip.AddrFromSlice(one.IP); ip.Unmap() == vip4 || ip == vip6 {
				t.Errorf("%s is an address of the machine", ip)
			}
		}
	})

	// Now only the API server of b counts as ready. The listener of the test on a still works, so
	// the test sees if a client still reaches a.
	ready("b")
	since := time.Now()
	both.until(t, "b answers", b.answers)
	t.Logf("b answers after %v", time.Since(since))
	ended(first)
	second := reach("b")
	// The deletion of flows is slow if the kernel tracks many connections. It must not delete flows
	// that began after the move.
	for i, s := range both {
		s.Do(func() {
			for _, r := range []redirect{{vip4, planes[i]}, {vip6, s.agent.spec.Node.IPs[1]}} {
				before := countRedirected(t, r)
				must(t, dropFlows(staleFlows{r, s == b}))
				if after := countRedirected(t, r); s == b && (before == 0 || after != before) || s == a && after != 0 {
					t.Errorf("%s tracked %d connections from %s to its API server, and now %d", s.name, before, r.from, after)
				}
			}
		})
	}
	for name, conn := range second {
		_, err := conn.Write([]byte("?"))
		if err == nil {
			_, err = io.ReadFull(conn, make([]byte, 1))
		}
		if err != nil {
			t.Errorf("%s: a connection that is newer than the move: %v", name, err)
		}
	}

	ready("a", "b")
	since = time.Now()
	both.until(t, "time passes", func() bool { return time.Since(since) > 2*silence })
	if a.answers() || !b.answers() {
		t.Errorf("the address has moved: the status of a is %q, that of b %q", a.says, b.says)
	}

	port, err := netlink.LinkByName("b")
	must(t, err)
	must(t, netlink.LinkSetDown(port))
	both.until(t, "a answers, because the link of b is down", a.answers)
	must(t, netlink.LinkSetUp(port))
	both.until(t, "b receives the announcement of a", func() bool { return strings.Contains(b.says, "192.0.2.11 holds 192.0.2.9") })
	ended(second)
	reach("a")

	for _, s := range both {
		s.Do(func() {
			s.agent.close()
			conn, err := nftables.New()
			must(t, err)
			tables, err := conn.ListTables()
			must(t, err)
			for _, table := range tables {
				if table.Name == tableName {
					t.Errorf("%s has redirects after its end", s.name)
				}
			}
		})
	}
}

// countRedirected returns the number of tracked connections that the kernel redirects to the API
// server of this machine.
func countRedirected(t *testing.T, r redirect) (count int) {
	t.Helper()
	family := netlink.InetFamily(unix.AF_INET)
	if r.from.Is6() {
		family = unix.AF_INET6
	}
	flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
	must(t, err)
	for _, f := range flows {
		if (staleFlows{r, false}).MatchConntrackFlow(f) {
			count++
		}
	}
	return count
}

func route(t *testing.T, to, via string) {
	t.Helper()
	_, network, err := net.ParseCIDR(to)
	must(t, err)
	must(t, netlink.RouteAdd(&netlink.Route{Dst: network, Gw: net.ParseIP(via)}))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
