//go:build linux

package network_test

import (
	"context"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/jsimonetti/rtnetlink/v2"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/network/dhcp/dhcptest"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/kernel/rtnl"
	"github.com/orlop-os/orlop/pkg/kernel/rtnl/rtnltest"
)

// testController is a controller that runs in a network namespace of the test.
type testController struct {
	config     *cell.Cell[network.Config]
	state      *cell.Cell[network.State]
	controller *network.Controller
	files      network.FilePaths
	stop       func()
	mu         sync.Mutex
	log        []string
}

// launch starts a controller with this configuration. Its files are in a new directory.
func launch(t *testing.T, cfg network.Config) *testController {
	t.Helper()
	return launchIn(t, t.TempDir(), cfg)
}

// restart stops the controller, and starts another controller with the same configuration and the
// same files.
func (s *testController) restart(t *testing.T) *testController {
	t.Helper()
	s.stop()
	cfg, _ := s.config.Get()
	return launchIn(t, filepath.Dir(filepath.Dir(s.files.Hosts)), cfg)
}

func launchIn(t *testing.T, dir string, cfg network.Config) *testController {
	t.Helper()
	s := &testController{
		config: cell.New(cfg), state: cell.New(network.State{}),
		files: network.FilePaths{
			ResolvConf: filepath.Join(dir, "etc/resolv.conf"), Hosts: filepath.Join(dir, "etc/hosts"),
			Hostname: filepath.Join(dir, "etc/hostname"),
		},
	}
	s.controller = network.New(network.Deps{
		Config: s.config, State: s.state, Files: s.files, Leases: network.LeaseDir(filepath.Join(dir, "leases")),
		Log: func(line string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.log = append(s.log, line)
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.controller.Run(ctx) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != context.Canceled {
			t.Errorf("Run ended with %v", err)
		}
	})
	t.Cleanup(s.stop)
	return s
}

func (s *testController) lines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.log)
}

// slowTimeout is the limit for events that normally occur immediately. A busy computer may need
// most of this time.
const slowTimeout = 10 * time.Second

// wait waits until ok returns true for the state, and returns the state. If this takes longer than
// limit, it fails the test with a message that contains expected, a description of the expected
// state.
func (s *testController) wait(t *testing.T, limit time.Duration, expected string, ok func(network.State) bool) network.State {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	st, err := cell.Wait(ctx, s.state, ok)
	if err != nil {
		t.Fatalf("the state is not %q after %v: %+v\nlog:\n%s", expected, limit, st, strings.Join(s.lines(), "\n"))
	}
	return st
}

// has returns a condition for wait: the state has converged, and the link has a carrier and the
// address.
func has(link, address string) func(network.State) bool {
	return func(s network.State) bool {
		return s.Converged && slices.ContainsFunc(s.Links, func(l network.LinkState) bool {
			return l.Name == link && l.Carrier && slices.ContainsFunc(l.Addresses, func(a network.AddressState) bool {
				return a.Prefix == netip.MustParsePrefix(address)
			})
		})
	}
}

// hasNot returns a condition for wait: the state has converged, but has(link, address) is false.
func hasNot(link, address string) func(network.State) bool {
	with := has(link, address)
	return func(s network.State) bool { return s.Converged && !with(s) }
}

func ip4(a, b, c, d byte) net.IP { return net.IPv4(a, b, c, d) }

var dhcpServer = netip.MustParsePrefix("192.0.2.1/24")

func hourLease() dhcptest.Plan {
	return dhcptest.Plan{Offer: netip.MustParseAddr("192.0.2.55"), Lease: time.Hour, Options: []dhcpv4.Option{
		dhcpv4.OptRouter(ip4(192, 0, 2, 1)),
		dhcpv4.OptDNS(ip4(192, 0, 2, 53), ip4(192, 0, 2, 54)),
		dhcpv4.OptDomainName("example.test"),
		dhcpv4.OptNTPServers(ip4(192, 0, 2, 123)),
		dhcpv4.OptHostName("given"),
		dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, []byte{0x05, 0x78}),
	}}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func dhcpLink(name string) network.Config {
	return network.Config{Links: []network.LinkConfig{{Name: name, DHCP4: true}}}
}

// launchLeased connects eth0 to sw0 with a DHCP server, starts a controller, and waits for the
// address 192.0.2.55 on eth0.
func launchLeased(t *testing.T, plan dhcptest.Plan) (*testController, *dhcptest.Server, *rtnltest.Namespace) {
	t.Helper()
	other := cable(t)
	server := dhcptest.Start(t, other, "sw0", dhcpServer, plan)
	s := launch(t, dhcpLink("eth0"))
	s.wait(t, slowTimeout, "leased", has("eth0", "192.0.2.55/24"))
	return s, server, other
}

// cable creates a veth pair: eth0, and sw0 in the namespace of another machine. It returns this
// namespace.
func cable(t *testing.T) *rtnltest.Namespace {
	t.Helper()
	other := rtnltest.NewOther(t)
	rtnltest.Veth(t, "eth0", "sw0")
	other.MoveLink(t, "sw0")
	return other
}

// TestFirstLeaseKernel checks the first boot of a machine: the link is down, a DHCP server answers,
// and the network is configured from the lease.
func TestFirstLeaseKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	other := cable(t)
	server := dhcptest.Start(t, other, "sw0", dhcpServer, hourLease())
	start := time.Now()
	s := launch(t, dhcpLink("eth0"))
	st := s.wait(t, slowTimeout, "with its lease", has("eth0", "192.0.2.55/24"))
	t.Logf("first lease configured after %v", time.Since(start))
	// Messages can occur twice: the other end of the veth pair becomes ready at the same time, and
	// can lose the first packet.
	if seen := slices.Compact(server.Seen()); !slices.Equal(seen, []string{"DISCOVER", "REQUEST selecting"}) {
		t.Errorf("the server saw %q", seen)
	}
	if len(st.Routes) != 1 || st.Routes[0].Via != dhcpServer.Addr() || st.Routes[0].Metric != 1024 {
		t.Errorf("routes are %+v", st.Routes)
	}
	routes, err := network.KernelRoutes()
	leased := network.KernelRoute{To: netip.MustParsePrefix("0.0.0.0/0"), Via: dhcpServer.Addr(), Link: "eth0", Metric: 1024, Origin: "machine"}
	onLink := network.KernelRoute{To: netip.MustParsePrefix("192.0.2.0/24"), Link: "eth0", Origin: "kernel"}
	if err != nil || !slices.Contains(routes, leased) || !slices.Contains(routes, onLink) {
		t.Errorf("the routes of the kernel are %+v, %v; they must contain %+v and %+v", routes, err, leased, onLink)
	}
	if st.Hostname != "given" || !slices.Equal(st.TimeServers, []string{"192.0.2.123"}) {
		t.Errorf("host name %q, time servers %q", st.Hostname, st.TimeServers)
	}
	if i := slices.IndexFunc(st.Links, func(l network.LinkState) bool { return l.Name == "eth0" }); st.Links[i].MTU != 1400 {
		t.Errorf("MTU is %d, want 1400 as leased", st.Links[i].MTU)
	}
	if got, want := read(t, s.files.ResolvConf), "options timeout:2\nnameserver 192.0.2.53\nnameserver 192.0.2.54\nsearch example.test\n"; got != want {
		t.Errorf("resolv.conf is %q, want %q", got, want)
	}
	if got := read(t, s.files.Hosts); !strings.Contains(got, "192.0.2.55 given\n") {
		t.Errorf("hosts is %q", got)
	}
	if got := st.Addresses(); len(got) != 1 || got[0] != netip.MustParseAddr("192.0.2.55") {
		t.Errorf("addresses are %v", got)
	}
}

// TestStaticKernel applies two static configurations, and checks that a dry run of the second
// configuration lists exactly the operations that follow.
func TestStaticKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	rtnltest.Veth(t, "eth0", "eth1")
	first := network.Config{
		Hostname: "anchor.example.test", DNS: []netip.Addr{netip.MustParseAddr("2001:db8::53")}, Search: []string{"example.test"},
		Links: []network.LinkConfig{
			{Name: "eth0", MTU: 1400, Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.5/24"), netip.MustParsePrefix("2001:db8::5/64")},
				Routes: []network.RouteConfig{
					{To: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("10.0.0.1")},
					{To: netip.MustParsePrefix("::/0"), Via: netip.MustParseAddr("2001:db8::1"), Metric: 7},
					{To: netip.MustParsePrefix("10.9.0.0/16")}}},
			{Name: "eth1"},
		},
	}
	s := launch(t, first)
	st := s.wait(t, slowTimeout, "converged", has("eth0", "2001:db8::5/64"))
	if len(st.Routes) != 3 || st.Hostname != "anchor.example.test" {
		t.Errorf("state is %+v", st)
	}
	second := first
	second.Links = []network.LinkConfig{{Name: "eth0", Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.6/24")}}, {Name: "eth1"}}
	ops, err := s.controller.DryRun(second)
	if err != nil || !slices.Contains(ops, "address 10.0.0.6/24 on eth0: add") || !slices.Contains(ops, "route default via 10.0.0.1 on eth0 metric 512: delete") {
		t.Errorf("dry run: %q, %v", ops, err)
	}
	before := len(s.lines())
	s.config.Set(second)
	st = s.wait(t, slowTimeout, "changed", func(st network.State) bool {
		return has("eth0", "10.0.0.6/24")(st) && hasNot("eth0", "10.0.0.5/24")(st) && len(st.Routes) == 0
	})
	if got := s.lines()[before:]; !slices.Equal(got, ops) {
		t.Errorf("the dry run lists the operations %q, but the controller has performed %q", ops, got)
	}
}

// TestFlapAndReplugKernel checks that the link gets its address and route again in three cases: it
// loses its carrier and gets it back, it is set down, or it is removed and another link with its
// name appears.
func TestFlapAndReplugKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	s, _, other := launchLeased(t, hourLease())
	leased := has("eth0", "192.0.2.55/24")
	down := func(st network.State) bool { return !leased(st) }
	withRoute := func(st network.State) bool { return leased(st) && len(st.Routes) == 1 }
	s.wait(t, slowTimeout, "leased", withRoute)

	other.SetUp(t, "sw0", false)
	s.wait(t, slowTimeout, "without carrier", down)
	other.SetUp(t, "sw0", true)
	s.wait(t, slowTimeout, "back after a flap of the carrier", withRoute)

	// Another program sets the link down. The kernel then removes the routes of the link.
	rtnltest.SetUp(t, "eth0", false)
	s.wait(t, slowTimeout, "back after the link was set down", withRoute)

	rtnltest.Delete(t, "eth0")
	s.wait(t, slowTimeout, "without the link", func(st network.State) bool {
		return slices.Contains(st.Problems, "link eth0: is configured but does not exist")
	})
	rtnltest.Veth(t, "eth0", "sw1")
	other.MoveLink(t, "sw1")
	dhcptest.Start(t, other, "sw1", dhcpServer, hourLease())
	s.wait(t, slowTimeout, "back after a new link with the name appeared", withRoute)
}

// TestForeignKernel checks foreign addresses, which are addresses without the mark of the package
// (see doc.go), on a managed link and on another link. If the configuration contains such an
// address, the controller adopts the address. The other foreign addresses remain.
func TestForeignKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	rtnltest.Veth(t, "eth0", "eth1")
	rtnltest.SetUp(t, "eth1", true)
	c, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	addForeign := func(link, prefix string) {
		i, err := net.InterfaceByName(link)
		if err == nil {
			err = rtnl.SetAddress(c, rtnl.Address{Index: i.Index, Prefix: netip.MustParsePrefix(prefix)})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	addForeign("eth0", "172.16.0.1/24")
	addForeign("eth0", "10.0.0.5/24") // the configuration contains this address
	addForeign("eth1", "172.16.1.1/24")
	s := launch(t, network.Config{Links: []network.LinkConfig{{Name: "eth0", Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.5/24")}}}})
	s.wait(t, slowTimeout, "converged", func(st network.State) bool {
		return has("eth0", "10.0.0.5/24")(st) && has("eth0", "172.16.0.1/24")(st)
	})
	if !slices.Contains(s.lines(), "address 10.0.0.5/24 on eth0: adopt") {
		t.Errorf("the log is %q", s.lines())
	}
	// Without a configuration, only links of hardware are managed, and this namespace has none.
	s.config.Set(network.Config{})
	s.wait(t, slowTimeout, "without managed links", func(st network.State) bool { return st.Converged && len(st.Links) == 1 })
	all, err := rtnl.Addresses(c)
	if err != nil {
		t.Fatal(err)
	}
	left := map[string]bool{}
	for _, a := range all {
		left[a.Prefix.String()] = true
	}
	if !left["172.16.0.1/24"] || !left["172.16.1.1/24"] || left["10.0.0.5/24"] {
		t.Errorf("the remaining addresses are %v", left)
	}
}

// TestPulledCableKernel removes the carrier of the preferred link, as a disconnected cable does.
// Until the carrier is back, the machine sends packets over the second link.
func TestPulledCableKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	other := rtnltest.NewOther(t)
	var cfg network.Config
	for i, name := range []string{"eth0", "eth1"} {
		peer := fmt.Sprintf("sw%d", i)
		rtnltest.Veth(t, name, peer)
		other.MoveLink(t, peer)
		other.SetUp(t, peer, true)
		at := func(text string) string { return fmt.Sprintf(text, i) }
		cfg.Links = append(cfg.Links, network.LinkConfig{
			Name: name, Addresses: []netip.Prefix{netip.MustParsePrefix(at("10.%d.0.5/24")), netip.MustParsePrefix(at("2001:db8:%d::5/64"))},
			Routes: []network.RouteConfig{
				{To: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr(at("10.%d.0.1"))},
				{To: netip.MustParsePrefix("::/0"), Via: netip.MustParseAddr(at("2001:db8:%d::1"))},
			},
		})
	}
	s := launch(t, cfg)
	// sends checks the source addresses of packets to a remote network, for IPv4 and for IPv6.
	sends := func(when string, want ...string) {
		t.Helper()
		for i, to := range []string{"203.0.113.9:9", "[2001:db8:ffff::9]:9"} {
			c, err := net.Dial("udp", to)
			if err != nil {
				t.Errorf("%s: %v", when, err)
				continue
			}
			if from, _, _ := net.SplitHostPort(c.LocalAddr().String()); from != want[i] {
				t.Errorf("%s: packets to %s have the source address %s, want %s", when, to, from, want[i])
			}
			c.Close()
		}
	}
	both := func(st network.State) bool {
		return has("eth0", "2001:db8:0::5/64")(st) && has("eth1", "2001:db8:1::5/64")(st) && len(st.Routes) == 4
	}
	s.wait(t, slowTimeout, "converged", both)
	sends("both links", "10.0.0.5", "2001:db8::5")
	other.SetUp(t, "sw0", false)
	s.wait(t, slowTimeout, "without carrier", func(st network.State) bool { return !both(st) })
	sends("the first link has no carrier", "10.1.0.5", "2001:db8:1::5")
	other.SetUp(t, "sw0", true)
	s.wait(t, slowTimeout, "back", both)
	sends("both links again", "10.0.0.5", "2001:db8::5")
}

// TestAdvertisedKernel checks a link that does not accept router advertisements: the controller
// removes an address and a route of an earlier router advertisement.
func TestAdvertisedKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	rtnltest.Veth(t, "eth0", "eth1")
	rtnltest.SetUp(t, "eth0", true)
	rtnltest.SetUp(t, "eth1", true)
	link, err := net.InterfaceByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	c, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	advertised := netip.MustParsePrefix("2001:db8:1::5/64")
	if err := rtnl.SetAddress(c, rtnl.Address{Index: link.Index, Prefix: advertised, Protocol: rtnl.ProtoKernelRA, Flags: unix.IFA_F_NODAD}); err != nil {
		t.Fatal(err)
	}
	r, err := rtnetlink.Dial(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	err = r.Route.Add(&rtnetlink.RouteMessage{
		Family: unix.AF_INET6, Table: unix.RT_TABLE_MAIN, Protocol: unix.RTPROT_RA, Type: unix.RTN_UNICAST,
		Attributes: rtnetlink.RouteAttributes{OutIface: uint32(link.Index), Gateway: net.ParseIP("fe80::fe"), Priority: 1024},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := launch(t, network.Config{Links: []network.LinkConfig{{Name: "eth0", Addresses: []netip.Prefix{netip.MustParsePrefix("2001:db8::5/64")}}}})
	s.wait(t, slowTimeout, "converged without the advertised address", func(st network.State) bool {
		return has("eth0", "2001:db8::5/64")(st) && hasNot("eth0", advertised.String())(st)
	})
	routes, err := network.KernelRoutes()
	if err != nil || slices.ContainsFunc(routes, func(r network.KernelRoute) bool { return r.Via == netip.MustParseAddr("fe80::fe") }) {
		t.Errorf("routes are %+v, %v", routes, err)
	}
}

// TestSolicitKernel checks that a new configuration which enables router advertisements causes a
// router solicitation, although the link is already up.
func TestSolicitKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	rtnltest.Veth(t, "eth0", "sw0")
	rtnltest.SetUp(t, "sw0", true)
	cfg := network.Config{Links: []network.LinkConfig{{Name: "eth0"}}}
	s := launch(t, cfg)
	s.wait(t, slowTimeout, "with a usable link-local address", func(st network.State) bool {
		return st.Converged && slices.ContainsFunc(st.Links, func(l network.LinkState) bool {
			return l.Name == "eth0" && slices.ContainsFunc(l.Addresses, func(a network.AddressState) bool { return a.Unfit == "" })
		})
	})
	link, err := net.InterfaceByName("sw0")
	if err != nil {
		t.Fatal(err)
	}
	ipv6 := bits.ReverseBytes16(unix.ETH_P_IPV6) // in network byte order
	wire, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(ipv6))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(wire)
	if err := unix.Bind(wire, &unix.SockaddrLinklayer{Protocol: ipv6, Ifindex: link.Index}); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetsockoptTimeval(wire, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2}); err != nil {
		t.Fatal(err)
	}
	cfg.Links = []network.LinkConfig{{Name: "eth0", IPv6: network.LinkIPv6{AcceptRA: true}}}
	s.config.Set(cfg)
	// hopLimit and kind are offsets in the packet; solicitation is the ICMPv6 type of the message.
	const hopLimit, kind, solicitation = 7, 40, 133
	for packet := make([]byte, 1500); ; {
		n, _, err := unix.Recvfrom(wire, packet, 0)
		if err != nil {
			t.Fatalf("no router solicitation: %v\n%s", err, strings.Join(s.lines(), "\n"))
		}
		if n > kind && packet[kind] == solicitation {
			if packet[hopLimit] != 255 {
				t.Errorf("the hop limit is %d, but a router accepts only 255", packet[hopLimit])
			}
			return
		}
	}
}

// TestRenewKernel checks all phases of a lease on a configured link. The client renews the lease by
// unicast. When the server ignores unicast, the client rebinds by broadcast. When the server does
// not answer, the address is removed at the end of the lease. Then the client gets a new lease.
func TestRenewKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	plan := dhcptest.Plan{Offer: netip.MustParseAddr("192.0.2.55"), Lease: 4 * time.Second, Options: []dhcpv4.Option{
		dhcptest.Seconds(dhcpv4.OptionRenewTimeValue, time.Second),
		dhcptest.Seconds(dhcpv4.OptionRebindingTimeValue, 2*time.Second),
	}}
	s, server, _ := launchLeased(t, plan)
	leased := has("eth0", "192.0.2.55/24")
	saw := func(what string) func([]string) bool {
		return func(seen []string) bool { return slices.Contains(seen, what) }
	}
	server.Wait(t, 3*time.Second, saw("REQUEST renewing"))
	plan.NoRenew = true
	server.Set(plan)
	server.Wait(t, 4*time.Second, saw("REQUEST rebinding"))
	if st, _ := s.state.Get(); !leased(st) {
		t.Errorf("the address was removed although the lease was extended: %+v", st)
	}
	server.Set(dhcptest.Plan{})
	st := s.wait(t, slowTimeout, "without the address", hasNot("eth0", "192.0.2.55/24"))
	if len(st.Routes) != 0 {
		t.Errorf("the routes of the ended lease remain: %+v", st.Routes)
	}
	s.wait(t, 10*time.Second, "with a problem", func(st network.State) bool {
		return len(st.Problems) == 1 && strings.Contains(st.Problems[0], "no DHCP server answers")
	})
	server.Set(hourLease())
	s.wait(t, 10*time.Second, "leased again", func(st network.State) bool { return leased(st) && len(st.Problems) == 0 })
}

// TestUnusableKernel checks a lease with an invalid resolver address. The controller omits this
// address, and logs the problem only once, although each renewal contains the address.
func TestUnusableKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	plan := hourLease()
	plan.Options = append(plan.Options, dhcpv4.OptDNS(ip4(127, 0, 0, 53), ip4(192, 0, 2, 54)), dhcptest.Seconds(dhcpv4.OptionRenewTimeValue, time.Second))
	s, server, _ := launchLeased(t, plan)
	server.Wait(t, slowTimeout, func(seen []string) bool {
		// The client sends another message only after the server has answered the first renewal.
		return slices.Index(seen, "REQUEST renewing") != len(seen)-1 && slices.Contains(seen, "REQUEST renewing")
	})
	if got, want := read(t, s.files.ResolvConf), "nameserver 192.0.2.54\nsearch example.test\n"; got != want {
		t.Errorf("resolv.conf is %q, want %q", got, want)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var logged []string
	for _, line := range s.log {
		if strings.Contains(line, "unusable") {
			logged = append(logged, line)
		}
	}
	want := "link eth0: unusable options of server 192.0.2.1: resolvers (option 6): 127.0.0.53 is not an address of a machine"
	if !slices.Equal(logged, []string{want}) {
		t.Errorf("logged %q, want once %q", logged, want)
	}
}

// TestNakKernel checks a server that rejects the renewal of a lease (NAK): the controller removes
// the address immediately, and the client gets another lease.
func TestNakKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	plan := dhcptest.Plan{Offer: netip.MustParseAddr("192.0.2.55"), Lease: time.Minute, Options: []dhcpv4.Option{
		dhcptest.Seconds(dhcpv4.OptionRenewTimeValue, time.Second),
	}}
	s, server, _ := launchLeased(t, plan)
	plan.Refuse = true
	server.Set(plan)
	s.wait(t, slowTimeout, "without the address", hasNot("eth0", "192.0.2.55/24"))
	next := hourLease()
	next.Offer = netip.MustParseAddr("192.0.2.66")
	server.Set(next)
	s.wait(t, slowTimeout, "leased with another address", has("eth0", "192.0.2.66/24"))
}

// TestRestartKernel checks a restart of the controller: the client first requests the address of
// the stored lease, and the address stays on the link.
func TestRestartKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	s, server, _ := launchLeased(t, hourLease())
	before := len(server.Seen())
	again := s.restart(t)
	again.wait(t, slowTimeout, "leased", has("eth0", "192.0.2.55/24"))
	seen := server.Wait(t, slowTimeout, func(seen []string) bool { return len(seen) > before })
	if seen[before] != "REQUEST rebooting" {
		t.Errorf("the server saw %q after the restart", seen[before:])
	}
	if slices.Contains(again.lines(), "address 192.0.2.55/24 on eth0: delete") {
		t.Errorf("the address was removed: %q", again.lines())
	}
}

// TestHardwareKernel checks a machine without a configuration, with the network interface of the
// machine and the DHCP server of its network. The test changes the network of the machine, so it
// runs only on a machine for tests.
func TestHardwareKernel(t *testing.T) {
	if os.Getenv("ORLOP_KERNEL_TEST") != "1" {
		t.Skip("changes the network of the whole machine: runs under the product kernel only (ORLOP_KERNEL_TEST=1)")
	}
	start := time.Now()
	s := launch(t, network.Config{})
	st := s.wait(t, 10*time.Second, "with an address by DHCP", func(st network.State) bool {
		return st.Converged && len(st.Routes) > 0 && slices.ContainsFunc(st.Addresses(), netip.Addr.Is4)
	})
	t.Logf("first lease configured after %v", time.Since(start))
	i := slices.IndexFunc(st.Links, func(l network.LinkState) bool { return l.DHCP != nil })
	if l := st.Links[i]; !l.Managed || l.Driver == "" || l.MAC == "" || l.DHCP.Lease == nil {
		t.Errorf("the link is %+v", l)
	}
	if len(st.Problems) > 0 {
		t.Errorf("problems: %q", st.Problems)
	}
}

// TestGatewayKernel checks that AwaitGateway succeeds for an existing router. It fails for a router
// that does not exist, and for a link that does not exist.
func TestGatewayKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	s, _, _ := launchLeased(t, hourLease())
	st, _ := s.state.Get()
	gateways := st.Gateways()
	if len(gateways) != 1 || gateways[0].Via != dhcpServer.Addr() {
		t.Fatalf("gateways are %+v", gateways)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := network.AwaitGateway(ctx, gateways[0]); err != nil {
		t.Error(err)
	}
	absent := gateways[0]
	absent.Via = netip.MustParseAddr("192.0.2.200")
	ctx, cancel = context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := network.AwaitGateway(ctx, absent); err == nil || err.Error() != "gateway 192.0.2.200 on eth0 does not answer" {
		t.Errorf("a router that does not exist: %v", err)
	}
	absent.Link = "eth7"
	if err := network.AwaitGateway(ctx, absent); err == nil {
		t.Error("AwaitGateway succeeds for a link that does not exist")
	}
}
