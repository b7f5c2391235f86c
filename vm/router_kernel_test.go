//go:build linux

package vm

import (
	"context"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/kernel/rtnl/rtnltest"
)

// TestRouterKernel connects an interface of the kernel to a network with IPv6 only. It checks for
// each mode of the router that package machined/network configures the interface, and that a
// forward reaches a port at the address of the interface.
func TestRouterKernel(t *testing.T) {
	for _, mode := range []IPv6Mode{IPv6Advertised, IPv6Stateless, IPv6Stateful} {
		t.Run(string(mode), func(t *testing.T) {
			if !rtnltest.Isolate(t) {
				return
			}
			n := newTestNetwork(t, NetworkSpec{IPv6: IPv6Spec{Mode: mode, Only: true, Delegated: netip.MustParsePrefix("fd00:78::/48")}})
			own := plugKernel(t, n)
			state := cell.New(network.State{})
			dir := t.TempDir()
			controller := network.New(network.Deps{
				Config: cell.New(network.Config{Links: []network.LinkConfig{{Name: "eth0", IPv6: network.LinkIPv6{AcceptRA: true, DHCP6: network.DHCP6Auto}}}}),
				State:  state, Files: network.FilePaths{ResolvConf: filepath.Join(dir, "resolv.conf"), Hosts: filepath.Join(dir, "hosts"), Hostname: filepath.Join(dir, "hostname")},
				Log: func(string) {},
			})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- controller.Run(ctx) }()
			t.Cleanup(func() { cancel(); <-done })
			waiting, stop := context.WithTimeout(ctx, 20*time.Second)
			defer stop()
			st, err := cell.Wait(waiting, state, func(s network.State) bool {
				return slices.Equal(s.Node, []netip.Addr{own}) && slices.Equal(s.Servers, []netip.Addr{n.Gateway()}) && slices.Equal(s.Search, []string{n.Domain()}) && len(s.Gateways()) == 1
			})
			if err != nil {
				t.Fatalf("the interface was not configured within 20 s: %+v", st)
			}
			if want := mode != IPv6Advertised; want != slices.Equal(st.TimeServers, []string{n.Gateway().String()}) {
				t.Errorf("the time servers are %q", st.TimeServers)
			}
			checkReached(t, n, own)
		})
	}
}

// plugKernel connects the interface eth0 of this network namespace to the switch. It returns the
// IPv6 address that eth0 gets.
func plugKernel(t *testing.T, n *Network) netip.Addr {
	t.Helper()
	rtnltest.SetUp(t, "lo", true)
	rtnltest.Veth(t, "eth0", "sw0")
	rtnltest.SetUp(t, "sw0", true)
	link, err := net.InterfaceByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	peer, err := net.InterfaceByName("sw0")
	if err != nil {
		t.Fatal(err)
	}
	mac := macAddr(link.HardwareAddr)
	n.mu.Lock()
	n.leases[mac] = &lease{name: "cp1"}
	n.mu.Unlock()
	wire, err := packet.Listen(peer, packet.Raw, unix.ETH_P_ALL, nil)
	if err == nil {
		err = wire.SetPromiscuous(true)
	}
	if err != nil {
		t.Fatal(err)
	}
	port := n.sw.attach("cp1", func(frames []frame) error {
		for _, f := range frames {
			if _, err := wire.WriteTo(f.eth(), &packet.Addr{HardwareAddr: peer.HardwareAddr}); err != nil {
				return err
			}
		}
		return nil
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, maxFrame)
		for {
			size, _, err := wire.ReadFrom(buf)
			if err != nil {
				return
			}
			f := newFrame(size)
			copy(f.eth(), buf)
			port.receive(f)
		}
	}()
	t.Cleanup(func() {
		wire.Close()
		<-done
		port.close()
	})
	return n.SixOf("cp1")
}

// checkReached checks that a forward reaches a TCP port of this network namespace.
func checkReached(t *testing.T, n *Network, own netip.Addr) {
	t.Helper()
	l, err := net.Listen("tcp6", netip.AddrPortFrom(own, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if conn, err := l.Accept(); err == nil {
			conn.Write([]byte("hello"))
			conn.Close()
		}
	}()
	f, err := n.Forward(0, l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.DialTimeout("tcp", f.Addr, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 5)
	if _, err := conn.Read(b); err != nil || string(b) != "hello" {
		t.Errorf("the client of the forward received %q, %v, want hello", b, err)
	}
}
