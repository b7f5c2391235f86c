package vm

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/orlop-os/orlop/pkg/bgp"
	"github.com/orlop-os/orlop/pkg/cell"
)

// announcer is a machine that serves an address and announces a route to this address.
type announcer struct {
	*Host
	routes *cell.Cell[[]netip.Prefix]
	stop   context.CancelCauseFunc
}

func announce(t *testing.T, n *Network, name string, route netip.Prefix) *announcer {
	t.Helper()
	h, err := n.NewHost(name, netip.Addr{})
	if err != nil {
		t.Fatal(err)
	}
	p := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: tcpip.AddressWithPrefix{Address: tcpip.AddrFrom4(route.Addr().As4()), PrefixLen: 32}}
	if err := h.stack.AddProtocolAddress(nic, p, stack.AddressProperties{}); err != nil {
		t.Fatal(err)
	}
	l, err := h.Listen(80)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); h.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, name) // the client checks the text
			conn.Close()
		}
	}()
	conn, err := h.DialContext(t.Context(), "tcp", net.JoinHostPort(n.Gateway().String(), "179"))
	if err != nil {
		t.Fatal(err)
	}
	a := &announcer{Host: h, routes: cell.New([]netip.Prefix{route})}
	var ctx context.Context
	ctx, a.stop = context.WithCancelCause(t.Context())
	go func() {
		_ = bgp.Serve(ctx, conn, bgp.Config{ASN: 64512, PeerASN: 64513, RouterID: h.Addr(), HoldTime: 3 * time.Second, NextHops: []netip.Addr{h.Addr()}}, a.routes.Watch(), bgp.Hooks{Clock: n.Clock()})
	}()
	return a
}

// TestBGPRouter checks that the gateway distributes its connections among the machines that
// announce an address, and that it has no route after the end of the last session.
func TestBGPRouter(t *testing.T) {
	n := newTestNetwork(t, NetworkSpec{Dilation: 2})
	r, err := StartBGP(n, 64513)
	if err != nil {
		t.Fatal(err)
	}
	route := netip.MustParsePrefix("203.0.113.70/32")
	await := func(want ...netip.Addr) {
		t.Helper()
		deadline := time.NewTimer(20 * time.Second)
		defer deadline.Stop()
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for !slices.Equal(r.Hops(route.Addr()), want) {
			select {
			case <-tick.C:
			case <-deadline.C:
				t.Fatalf("the next hops are %v, want %v", r.Hops(route.Addr()), want)
			}
		}
	}
	answers := func() string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		conn, err := n.DialContext(ctx, "tcp", "203.0.113.70:80")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		text, err := io.ReadAll(conn)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	a, b := announce(t, n, "a", route), announce(t, n, "b", route)
	await(a.Addr(), b.Addr())
	if got := []string{answers(), answers()}; !slices.Contains(got, "a") || !slices.Contains(got, "b") {
		t.Errorf("two connections were answered by %v, want a and b", got)
	}
	a.routes.Set(nil)
	await(b.Addr())
	if got := answers() + answers(); got != "bb" {
		t.Errorf("after the withdrawal by a, two connections were answered by %s, want bb", got)
	}
	b.stop(errors.New("stopped"))
	await()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if conn, err := n.DialContext(ctx, "tcp", "203.0.113.70:80"); err == nil {
		conn.Close()
		t.Error("an address without a route answers")
	}
	if got := r.Seen(); !slices.Equal(got, []netip.Prefix{route}) {
		t.Errorf("Seen returns %v, want only the announced route", got)
	}
}
