package bgp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/orchestrator/l2announcer"
	"github.com/orlop-os/orlop/pkg/bgp"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// router is a router with a table of the routes that its peer announces.
type router struct {
	at     netip.AddrPort
	table  *cell.Cell[[]string]
	ended  chan error
	closed chan struct{}
}

func newRouter(t *testing.T, asn uint32) *router {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &router{at: netip.MustParseAddrPort(l.Addr().String()), table: cell.New([]string(nil)), ended: make(chan error, 100), closed: make(chan struct{})}
	t.Cleanup(func() { l.Close(); <-r.closed })
	go func() {
		defer close(r.closed)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			c := bgp.Config{ASN: asn, RouterID: netip.MustParseAddr("192.0.2.1"), HoldTime: 3 * time.Second, Receives: true}
			r.ended <- bgp.Serve(t.Context(), conn, c, cell.New([]netip.Prefix(nil)).Watch(), bgp.Hooks{Update: r.update})
			r.table.Set(nil)
		}
	}()
	return r
}

func (r *router) update(_ bgp.Open, u bgp.Update) {
	r.table.Update(func(old []string) []string {
		next := slices.Clone(old)
		for _, p := range append(u.Withdrawn, u.Announced...) {
			next = slices.DeleteFunc(next, func(s string) bool { return strings.HasPrefix(s, p.String()+" ") })
		}
		for _, p := range u.Announced {
			next = append(next, fmt.Sprintf("%s via %s", p, u.NextHop))
		}
		slices.Sort(next)
		return next
	})
}

func (r *router) await(t *testing.T, want ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if got, err := cell.Wait(ctx, r.table, func(s []string) bool { return slices.Equal(s, want) }); err != nil {
		t.Fatalf("the router has %q, want %q", got, want)
	}
}

// TestRun has a machine with a session to one router, and a problem with another router. The
// machine announces the addresses of the plan, applies changes of the plan, and withdraws all
// addresses when it stops.
func TestRun(t *testing.T) {
	good, other := newRouter(t, 64513), newRouter(t, 64999)
	spec := nodespec.Spec{Node: nodespec.Node{Name: "a", IPs: []netip.Addr{netip.MustParseAddr("10.0.0.11"), netip.MustParseAddr("2001:db8::11")}}}
	spec.Network.BGP = &nodespec.BGP{ASN: 64512, RouterID: netip.MustParseAddr("10.0.0.11"), Peers: []nodespec.BGPPeer{
		{Address: good.at, ASN: 64513, HoldTime: 3},
		{Address: netip.MustParseAddrPort("127.0.0.2:179"), ASN: 64514, HoldTime: 3},
	}}
	a := newAgent(spec, "1", func(ctx context.Context, p bgp.Peer) (net.Conn, error) {
		if p.Address.Addr() == netip.MustParseAddr("127.0.0.2") {
			p.Address = other.at
		}
		return bgp.Dial(ctx, p)
	})
	closed := cell.New([]netip.Prefix(nil))
	a.close = func(all []netip.Prefix) error { closed.Set(all); return nil }
	ctx, cancel := context.WithCancel(t.Context())
	said, ended, done := cell.New(""), make(chan error, 1), make(chan error, 1)
	stopped := make(chan struct{})
	go func() { defer close(stopped); a.sessions(ctx, nil) }()
	go func() { done <- a.report(ctx, ended, func(_ string, _ bool, detail string) { said.Set(detail) }) }()
	says := func(words ...string) {
		t.Helper()
		waiting, stop := context.WithTimeout(t.Context(), 20*time.Second)
		defer stop()
		text, err := cell.Wait(waiting, said, func(s string) bool {
			return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(s, w) })
		})
		if err != nil {
			t.Fatalf("the component says %q, want %q", text, words)
		}
	}
	says("announces 0 addresses; 127.0.0.1: session since ", "; 127.0.0.2: the peer has the AS number 64999, expected 64514")
	node := l2announcer.Node{Name: "a", Ready: true, BootID: "1"}
	view := View{Self: "a", BootID: "1", Nodes: []l2announcer.Node{node}, Services: []l2announcer.Service{{
		Addresses: []netip.Addr{netip.MustParseAddr("203.0.113.70"), netip.MustParseAddr("2001:db8:1::70")},
	}}}
	a.view.Set(view)
	good.await(t, "2001:db8:1::70/128 via 2001:db8::11", "203.0.113.70/32 via 127.0.0.1")
	says("announces 2 addresses; ")
	a.api.Set([]netip.Addr{netip.MustParseAddr("10.0.0.9")})
	good.await(t, "10.0.0.9/32 via 127.0.0.1", "2001:db8:1::70/128 via 2001:db8::11", "203.0.113.70/32 via 127.0.0.1")
	view.Nodes = []l2announcer.Node{{Name: "a", BootID: "1"}}
	a.view.Set(view)
	good.await(t, "10.0.0.9/32 via 127.0.0.1")
	if got, _ := closed.Get(); fmt.Sprint(got) != "[10.0.0.9/32]" {
		t.Errorf("the unused ports of %v are closed, want those of 10.0.0.9/32", got)
	}
	cancel()
	good.await(t)
	<-stopped
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := <-good.ended; !strings.Contains(err.Error(), "the peer ended the session: 6(cease)") {
		t.Errorf("the session of the router ended with %v", err)
	}
}

// TestPartEnds checks that the component fails with the error of the goroutine that failed.
func TestPartEnds(t *testing.T) {
	a, ended := newAgent(nodespec.Spec{Network: nodespec.Network{BGP: &nodespec.BGP{}}}, "1", nil), make(chan error, 1)
	ended <- errors.New("broken")
	if err := a.report(t.Context(), ended, func(string, bool, string) {}); err == nil || err.Error() != "broken" {
		t.Errorf("ended with %v", err)
	}
}

// TestOrder checks that all goroutines of the component end when one of them ends. The unused ports
// of the announced addresses stay closed until all goroutines have ended.
func TestOrder(t *testing.T) {
	a := newAgent(nodespec.Spec{Network: nodespec.Network{BGP: &nodespec.BGP{}}}, "1", nil)
	steps := cell.New([]string(nil))
	step := func(s string) { steps.Update(func(old []string) []string { return append(slices.Clone(old), s) }) }
	a.close = func(all []netip.Prefix) error { step(fmt.Sprint("closes ", all)); return nil }
	err := a.run(t.Context(), nil, func(string, bool, string) {}, func(ctx context.Context) error {
		a.api.Set([]netip.Addr{netip.MustParseAddr("10.0.0.9")})
		<-ctx.Done()
		step("ends")
		return nil
	}, func(ctx context.Context) error {
		_, _ = cell.Wait(ctx, a.routes, func(r []netip.Prefix) bool { return len(r) > 0 })
		return errors.New("broken")
	})
	if err == nil || err.Error() != "broken" {
		t.Errorf("ended with %v", err)
	}
	if got, _ := steps.Get(); fmt.Sprintf("%q", got) != `["closes []" "closes [10.0.0.9/32]" "ends" "closes []"]` {
		t.Errorf("steps %q", got)
	}
}

func TestDescribe(t *testing.T) {
	one, other := netip.MustParseAddrPort("10.0.0.1:179"), netip.MustParseAddrPort("10.0.0.2:179")
	peers := []nodespec.BGPPeer{{Address: one}, {Address: other}}
	got := describe(nil, peers, map[netip.Addr]peerState{one.Addr(): {problem: "cannot connect: refused"}})
	if want := nodespec.ProblemPrefix + "announces 0 addresses; 10.0.0.1: cannot connect: refused; 10.0.0.2: connects"; got != want {
		t.Errorf("the text is %q, want %q", got, want)
	}
}

func TestPasswords(t *testing.T) {
	dir := t.TempDir()
	if all, err := readPasswords(dir); all != nil || err != nil {
		t.Errorf("without a file: %v, %v", all, err)
	}
	file := filepath.Join(dir, nodespec.BGPPasswordsFile)
	for text, want := range map[string]string{`{"10.0.0.1":"secret"}`: "secret", `{"10.0.0.1":`: ""} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		all, err := readPasswords(dir)
		if all[netip.MustParseAddr("10.0.0.1")] != want || (err != nil) != (want == "") {
			t.Errorf("%s: %v, %v", text, all, err)
		}
	}
}
