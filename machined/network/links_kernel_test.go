//go:build linux

package network_test

import (
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/pkg/kernel/rtnl/rtnltest"
)

// remote is the network to which eth0 and eth1 are connected: a switch with an address. A server at
// this address returns each datagram to its sender.
type remote struct {
	*rtnltest.Namespace
	kernel *network.Kernel
}

// plugIn creates eth0 and eth1. The other links of the two pairs, peer-eth0 and peer-eth1, are
// ports of the switch sw.
func plugIn(t *testing.T) remote {
	t.Helper()
	r := remote{Namespace: rtnltest.NewOther(t)}
	for _, name := range []string{"eth0", "eth1"} {
		rtnltest.Veth(t, name, "peer-"+name)
		r.MoveLink(t, "peer-"+name)
	}
	r.Do(func() {
		dir := t.TempDir()
		kernel, err := network.Open(network.FilePaths{ResolvConf: filepath.Join(dir, "r"), Hosts: filepath.Join(dir, "h"), Hostname: filepath.Join(dir, "n")})
		if err != nil {
			t.Error(err)
			return
		}
		r.kernel = kernel
	})
	if r.kernel == nil {
		t.FailNow()
	}
	t.Cleanup(func() { r.kernel.Close() })
	r.perform(t,
		network.Op{Verb: network.AddLink, Link: "sw", Index: -1, Change: network.Change{To: network.Virtual{Bridge: &network.Bridge{}}}},
		network.Op{Verb: network.SetMaster, Link: "peer-eth0", Index: -1, Name: "sw"},
		network.Op{Verb: network.SetMaster, Link: "peer-eth1", Index: -1, Name: "sw"},
		network.Op{Verb: network.SetLink, Link: "sw", Index: -1, Up: true})
	r.address(t, "sw", "10.0.0.1/24")
	return r
}

// perform performs operations in the namespace of the switch.
func (r remote) perform(t *testing.T, ops ...network.Op) {
	t.Helper()
	for _, op := range ops {
		r.Do(func() {
			if err := r.kernel.Do(op); err != nil {
				t.Error(err)
			}
		})
	}
	if t.Failed() {
		t.FailNow()
	}
}

// address adds an address to a link of the remote network, and starts a server at this address that
// returns each datagram.
func (r remote) address(t *testing.T, link, prefix string) {
	t.Helper()
	p := netip.MustParsePrefix(prefix)
	r.perform(t, network.Op{Verb: network.AddAddress, Link: link, Index: -1, Prefix: p})
	var server *net.UDPConn
	var err error
	r.Do(func() { server, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.Addr(), 7))) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	go func() {
		b := make([]byte, 64)
		for {
			n, from, err := server.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			server.WriteToUDPAddrPort(b[:n], from)
		}
	}()
}

// reach waits until the server at the address answers. If this takes longer than limit, it fails
// the test.
func reach(t *testing.T, address string, limit time.Duration) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for time.Now().Before(deadline) {
		c, err := net.Dial("udp", net.JoinHostPort(address, "7"))
		if err != nil {
			continue // the machine has no route yet
		}
		c.SetDeadline(time.Now().Add(200 * time.Millisecond))
		_, err = c.Write([]byte("hello"))
		if err == nil {
			_, err = c.Read(make([]byte, 64))
		}
		c.Close()
		if err == nil {
			return
		}
	}
	t.Fatalf("%s does not answer in %v", address, limit)
}

// belongs returns a condition for wait: the state has converged, and the member belongs to the
// master and is up.
func belongs(member, master string) func(network.State) bool {
	return func(s network.State) bool {
		return s.Converged && slices.ContainsFunc(s.Links, func(l network.LinkState) bool { return l.Name == member && l.Master == master && l.Up })
	}
}

// isolated runs the test again in a child process with its own namespaces (rtnltest.Isolate). It
// returns true in the child, and false in the parent. The child skips the test if the kernel does
// not support one of the kinds of links.
func isolated(t *testing.T, kinds ...string) bool {
	t.Helper()
	if !rtnltest.Isolate(t) {
		return false
	}
	rtnltest.NeedKinds(t, kinds...)
	return true
}

func members(names ...string) (out []network.Member) {
	for _, n := range names {
		out = append(out, network.Member{Selector: n})
	}
	return out
}

func activeBackup() network.Virtual {
	return network.Virtual{Bond: &network.Bond{Mode: "active-backup", Hash: "layer2", MII: 100 * time.Millisecond}}
}

// grow moves the address of eth0 to a new link, a bond or a bridge with eth0 as its member, and
// then adds the member eth1. It checks after each step that the remote network is reachable.
func grow(t *testing.T, name string, v network.Virtual) *testController {
	t.Helper()
	on := func(links ...network.LinkConfig) network.Config { return network.Config{Links: links} }
	address := []netip.Prefix{netip.MustParsePrefix("10.0.0.5/24")}
	s := launch(t, on(network.LinkConfig{Name: "eth0", Addresses: address}))
	s.wait(t, slowTimeout, "up with an address", has("eth0", "10.0.0.5/24"))
	reach(t, "10.0.0.1", slowTimeout)
	s.config.Set(on(network.LinkConfig{Name: name, Virtual: v, Members: members("eth0"), Addresses: address}))
	s.wait(t, slowTimeout, "on the new link", has(name, "10.0.0.5/24"))
	reach(t, "10.0.0.1", slowTimeout)
	s.config.Set(on(network.LinkConfig{Name: name, Virtual: v, Members: members("eth0", "eth1"), Addresses: address}))
	for ended := false; !ended; {
		reach(t, "10.0.0.1", 2*time.Second) // a new member must not interrupt the connection
		st, _ := s.state.Get()
		ended = belongs("eth1", name)(st)
	}
	return s
}

// TestBondKernel checks that the remote network is reachable over a bond while members join or lose
// their carrier, and after a change of the mode.
func TestBondKernel(t *testing.T) {
	if !isolated(t, "bond", "bridge") {
		return
	}
	r := plugIn(t)
	s := grow(t, "bond0", activeBackup())
	r.SetUp(t, "peer-eth0", false)
	reach(t, "10.0.0.1", slowTimeout)
	r.SetUp(t, "peer-eth0", true)
	s.wait(t, slowTimeout, "with both members", func(s network.State) bool {
		return s.Converged && !slices.ContainsFunc(s.Links, func(l network.LinkState) bool { return l.Master == "bond0" && !l.Carrier })
	})
	r.SetUp(t, "peer-eth1", false)
	reach(t, "10.0.0.1", slowTimeout)
	// The dry run of another mode lists that the bond is created again.
	next := network.Config{Links: []network.LinkConfig{{Name: "bond0", Members: members("eth0", "eth1"), Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.5/24")},
		Virtual: network.Virtual{Bond: &network.Bond{Mode: "balance-xor", Hash: "layer2", MII: 100 * time.Millisecond}}}}}
	lines, err := s.controller.DryRun(next)
	if err != nil || !slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, "mode cannot change live") }) {
		t.Errorf("the dry run lists %q, %v", lines, err)
	}
	s.config.Set(next)
	s.wait(t, slowTimeout, "in the other mode", func(s network.State) bool { return belongs("eth1", "bond0")(s) && has("bond0", "10.0.0.5/24")(s) })
	reach(t, "10.0.0.1", slowTimeout)
	s.config.Set(network.Config{Links: []network.LinkConfig{{Name: "eth0", Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.5/24")}}}})
	s.wait(t, slowTimeout, "without the bond", has("eth0", "10.0.0.5/24"))
	reach(t, "10.0.0.1", slowTimeout)
}

// TestBridgeKernel checks that the remote network is reachable over a bridge while a second port
// joins.
func TestBridgeKernel(t *testing.T) {
	if !isolated(t, "bridge") {
		return
	}
	r := plugIn(t)
	// Only eth0 stays connected to the switch: a bridge with two ports to the same switch would be
	// a loop.
	r.perform(t, network.Op{Verb: network.SetMaster, Link: "peer-eth1", Index: -1})
	s := grow(t, "br0", network.Virtual{Bridge: &network.Bridge{}})
	s.config.Set(network.Config{Links: []network.LinkConfig{{Name: "eth0", Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.5/24")}}}})
	s.wait(t, slowTimeout, "without the bridge", has("eth0", "10.0.0.5/24"))
	reach(t, "10.0.0.1", slowTimeout)
}

// TestVLANOnBondKernel checks that the remote network is reachable over a VLAN on a bond, also
// after the bond is created again with another mode.
func TestVLANOnBondKernel(t *testing.T) {
	if !isolated(t, "bond", "bridge", "vlan") {
		return
	}
	r := plugIn(t)
	r.perform(t,
		network.Op{Verb: network.AddLink, Link: "sw.100", Index: -1, Change: network.Change{To: network.Virtual{VLAN: &network.VLAN{Parent: "sw", ID: 100}}}},
		network.Op{Verb: network.SetLink, Link: "sw.100", Index: -1, Up: true})
	r.address(t, "sw.100", "10.1.0.1/24")
	config := func(mode string) network.Config {
		v := activeBackup()
		v.Bond.Mode = mode
		return network.Config{Links: []network.LinkConfig{
			{Name: "bond0.100", Virtual: network.Virtual{VLAN: &network.VLAN{Parent: "bond0", ID: 100}}, Addresses: []netip.Prefix{netip.MustParsePrefix("10.1.0.5/24")}},
			{Name: "bond0", Virtual: v, Members: members("eth0", "eth1")},
		}}
	}
	s := launch(t, config("active-backup"))
	for _, mode := range []string{"active-backup", "balance-xor", "active-backup"} {
		s.config.Set(config(mode))
		s.wait(t, slowTimeout, "a VLAN on "+mode, has("bond0.100", "10.1.0.5/24"))
		reach(t, "10.1.0.1", slowTimeout)
	}
}

// TestWireGuardKernel checks that the remote network is reachable over a WireGuard tunnel, and that
// the addition of another peer does not interrupt the session.
func TestWireGuardKernel(t *testing.T) {
	if !isolated(t, "wireguard", "bridge") {
		return
	}
	r := plugIn(t)
	key := func() wgtypes.Key {
		k, err := wgtypes.GeneratePrivateKey()
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	ours, theirs, third := key(), key(), key()
	far := network.Virtual{WireGuard: &network.WireGuard{Key: network.NewSecretKey(theirs), Port: 51821, Peers: []network.Peer{
		{Key: ours.PublicKey(), Allowed: []netip.Prefix{netip.MustParsePrefix("10.50.0.5/32")}}}}}
	r.perform(t,
		network.Op{Verb: network.AddLink, Link: "wg0", Index: -1, Change: network.Change{To: far}},
		network.Op{Verb: network.SetVirtual, Link: "wg0", Index: -1, Change: network.Change{To: far, Settings: []string{"public key", "port", "peer " + ours.PublicKey().String()}}},
		network.Op{Verb: network.SetLink, Link: "wg0", Index: -1, Up: true})
	r.address(t, "wg0", "10.50.0.1/24")
	config := func(more ...network.Peer) network.Config {
		peers := append(more, network.Peer{Key: theirs.PublicKey(), Endpoint: netip.MustParseAddrPort("10.0.0.1:51821"), Allowed: []netip.Prefix{netip.MustParsePrefix("10.50.0.1/32")}})
		return network.Config{Links: []network.LinkConfig{
			{Name: "eth0", Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.5/24")}},
			{Name: "wg0", Addresses: []netip.Prefix{netip.MustParsePrefix("10.50.0.5/24")},
				Virtual: network.Virtual{WireGuard: &network.WireGuard{Key: network.NewSecretKey(ours), Port: 51822, Peers: network.SortPeers(peers)}}},
		}}
	}
	s := launch(t, config())
	s.wait(t, slowTimeout, "with a tunnel", has("wg0", "10.50.0.5/24"))
	reach(t, "10.50.0.1", slowTimeout)
	s.config.Set(config(network.Peer{Key: third.PublicKey(), Allowed: []netip.Prefix{netip.MustParsePrefix("10.60.0.0/16")}}))
	s.wait(t, slowTimeout, "with another peer", func(st network.State) bool {
		_, revision := s.config.Get()
		return st.Converged && st.Revision == revision
	})
	reach(t, "10.50.0.1", 2*time.Second)
	if lines, err := s.controller.DryRun(config()); err != nil || len(lines) != 1 || !strings.Contains(lines[0], "removed") || strings.Contains(strings.Join(lines, ""), ours.String()) {
		t.Errorf("the dry run lists %q, %v", lines, err)
	}
}

// TestTakenLinksKernel checks that TakenLinks returns each name of a virtual link in the next
// configuration that hardware or another component already has. It omits names that were also taken
// in the previous configuration.
func TestTakenLinksKernel(t *testing.T) {
	if !isolated(t, "bridge") {
		return
	}
	rtnltest.Veth(t, "eth0", "peer-eth0")
	bridge := func(name string) network.LinkConfig {
		return network.LinkConfig{Name: name, Virtual: network.Virtual{Bridge: &network.Bridge{}}}
	}
	s := launch(t, network.Config{Links: []network.LinkConfig{bridge("br0")}})
	s.wait(t, slowTimeout, "the bridge", func(st network.State) bool {
		return st.Converged && slices.ContainsFunc(st.Links, func(l network.LinkState) bool { return l.Name == "br0" })
	})
	next := network.Config{Links: []network.LinkConfig{bridge("eth0"), bridge("br0"), bridge("br1")}}
	if taken, err := s.controller.TakenLinks(network.Config{}, next); err != nil || !slices.Equal(taken, []string{"eth0"}) {
		t.Errorf("the taken names are %q, %v; want eth0", taken, err)
	}
	if taken, err := s.controller.TakenLinks(next, next); err != nil || len(taken) > 0 {
		t.Errorf("the active configuration has the same names, but the taken names are %q, %v", taken, err)
	}
}
