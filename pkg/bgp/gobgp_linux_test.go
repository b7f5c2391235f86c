package bgp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"

	"github.com/orlop-os/orlop/pkg/cell"
)

const routerASN = 64513

// gobgp is the router of the tests. It runs GoBGP, another implementation of BGP.
type gobgp struct {
	t      *testing.T
	server *server.BgpServer
	at     netip.AddrPort
}

// newGoBGP starts a router that accepts connections from 127.0.0.1, and has a route of its own. If
// oneHop is true, the router accepts only packets with a TTL of 255.
func newGoBGP(t *testing.T, password string, oneHop bool) *gobgp {
	t.Helper()
	free, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(free.Addr().String())
	free.Close()
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	g := &gobgp{t: t, server: server.NewBgpServer(server.LoggerOption(quiet, new(slog.LevelVar))), at: at}
	go g.server.Serve()
	t.Cleanup(g.server.Stop)
	g.check(g.server.StartBgp(t.Context(), &api.StartBgpRequest{Global: &api.Global{
		Asn: routerASN, RouterId: "192.0.2.1", ListenPort: int32(at.Port()), ListenAddresses: []string{"127.0.0.1"},
	}}))
	families := []*api.AfiSafi{}
	for _, f := range []api.Family_Afi{api.Family_AFI_IP, api.Family_AFI_IP6} {
		families = append(families, &api.AfiSafi{Config: &api.AfiSafiConfig{Family: &api.Family{Afi: f, Safi: api.Family_SAFI_UNICAST}, Enabled: true}})
	}
	g.check(g.server.AddPeer(t.Context(), &api.AddPeerRequest{Peer: &api.Peer{
		Conf:        &api.PeerConf{NeighborAddress: "127.0.0.1", PeerAsn: 64512, AuthPassword: password},
		Transport:   &api.Transport{PassiveMode: true},
		AfiSafis:    families,
		TtlSecurity: &api.TtlSecurity{Enabled: oneHop, TtlMin: 255},
		Timers:      &api.Timers{Config: &api.TimersConfig{HoldTime: uint64(holdTime / time.Second), KeepaliveInterval: 2}},
	}}))
	g.accepts()
	own, err := bgp.NewIPAddrPrefix(netip.MustParsePrefix("0.0.0.0/0"))
	g.check(err)
	hop, err := bgp.NewPathAttributeNextHop(netip.MustParseAddr("192.0.2.1"))
	g.check(err)
	_, err = g.server.AddPath(apiutil.AddPathRequest{Paths: []*apiutil.Path{{
		Family: bgp.RF_IPv4_UC, Nlri: own, Attrs: []bgp.PathAttributeInterface{bgp.NewPathAttributeOrigin(0), hop},
	}}})
	g.check(err)
	return g
}

func (g *gobgp) check(err error) {
	g.t.Helper()
	if err != nil {
		g.t.Fatal(err)
	}
}

// accepts waits until the router accepts a connection of its peer. In the first state, idle, the
// router closes each connection.
func (g *gobgp) accepts() {
	g.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; <-time.After(time.Millisecond) {
		state := api.PeerState_SESSION_STATE_UNSPECIFIED
		g.check(g.server.ListPeer(g.t.Context(), &api.ListPeerRequest{}, func(p *api.Peer) { state = p.State.SessionState }))
		if state == api.PeerState_SESSION_STATE_ACTIVE {
			return
		}
		if time.Now().After(deadline) {
			g.t.Fatalf("the router does not accept its peer: %s", state)
		}
	}
}

// routes returns the routes that the router has from its peer.
func (g *gobgp) routes() []string {
	var out []string
	for _, f := range []bgp.Family{bgp.RF_IPv4_UC, bgp.RF_IPv6_UC} {
		err := g.server.ListPath(apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_GLOBAL, Family: f}, func(n bgp.NLRI, paths []*apiutil.Path) {
			for _, p := range paths {
				if !p.PeerAddress.IsValid() || !p.PeerAddress.IsLoopback() {
					continue
				}
				hop, path := "", ""
				for _, a := range p.Attrs {
					switch a := a.(type) {
					case *bgp.PathAttributeNextHop:
						hop = a.Value.String()
					case *bgp.PathAttributeMpReachNLRI:
						hop = a.Nexthop.String()
					case *bgp.PathAttributeAsPath:
						for _, part := range a.Value {
							path += fmt.Sprint(part.GetAS())
						}
					}
				}
				out = append(out, fmt.Sprintf("%s via %s path %s", n, hop, path))
			}
		})
		g.check(err)
	}
	slices.Sort(out)
	return out
}

// await waits until the router has exactly these routes. It fails the test after the duration in
// the parameter within.
func (g *gobgp) await(within time.Duration, want ...string) {
	g.t.Helper()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		got := g.routes()
		if slices.Equal(got, want) {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			g.t.Fatalf("the router has %q, want %q", got, want)
		}
	}
}

// speaker is the side of this package in a session with the router.
type speaker struct {
	routes *cell.Cell[[]netip.Prefix]
	state  *cell.Cell[State]
	conn   net.Conn
	stop   func()
	ended  chan error
}

func speak(t *testing.T, p Peer, c Config) (*speaker, error) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	conn, err := Dial(ctx, p)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	s := &speaker{routes: cell.New([]netip.Prefix(nil)), state: cell.New(State(0)), conn: conn, ended: make(chan error, 1)}
	s.stop = func() { cancel(errors.New("this machine stops")) }
	t.Cleanup(s.stop)
	go func() { s.ended <- Serve(ctx, conn, c, s.routes.Watch(), Hooks{State: s.state.Set}) }()
	return s, nil
}

func (s *speaker) establish(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := cell.Wait(ctx, s.state, func(st State) bool { return st == Established }); err != nil {
		t.Fatal("the session is not established")
	}
}

// holdTime is long enough for keepalives on a busy computer.
const holdTime = 6 * time.Second

var config = Config{
	ASN: 64512, PeerASN: routerASN, RouterID: netip.MustParseAddr("192.0.2.11"), HoldTime: holdTime,
	NextHops: []netip.Addr{netip.MustParseAddr("192.0.2.11"), netip.MustParseAddr("2001:db8::11")},
}

// TestGoBGP: a router with another implementation gets the announced routes. It drops a route at
// once when this machine withdraws the route, and all routes when this machine ends the session.
// The router's own routes have no effect.
func TestGoBGP(t *testing.T) {
	g := newGoBGP(t, "", false)
	s, err := speak(t, Peer{Address: g.at}, config)
	g.check(err)
	s.establish(t)
	one, six := netip.MustParsePrefix("203.0.113.70/32"), netip.MustParsePrefix("2001:db8:1::70/128")
	const routeOne, routeSix = "203.0.113.70/32 via 192.0.2.11 path [64512]", "2001:db8:1::70/128 via 2001:db8::11 path [64512]"
	s.routes.Set([]netip.Prefix{one, six})
	g.await(20*time.Second, routeSix, routeOne)
	s.routes.Set([]netip.Prefix{one})
	g.await(20*time.Second, routeOne)
	// Both sides send keepalives. Without them, the session would end after the hold time.
	alive := time.NewTimer(config.HoldTime + time.Second)
	defer alive.Stop()
	select {
	case err := <-s.ended:
		t.Fatalf("the session ended: %v", err)
	case <-alive.C:
	}
	g.await(20*time.Second, routeOne)
	s.stop()
	g.await(holdTime - time.Second)
	if err := <-s.ended; err == nil || err.Error() != "this machine stops" {
		t.Errorf("the session ended with %v", err)
	}
}

// TestGoBGPPowerLoss: a machine that lost its power sends no notification, and the router drops its
// routes after the hold time.
func TestGoBGPPowerLoss(t *testing.T) {
	g := newGoBGP(t, "", false)
	conn, err := Dial(t.Context(), Peer{Address: g.at})
	g.check(err)
	defer conn.Close()
	// The machine stops, but the connection stays open.
	c := &mute{Conn: conn, off: make(chan struct{})}
	routes, state := cell.New([]netip.Prefix{netip.MustParsePrefix("203.0.113.70/32")}), cell.New(State(0))
	ended := make(chan error, 1)
	go func() { ended <- Serve(t.Context(), c, config, routes.Watch(), Hooks{State: state.Set}) }()
	(&speaker{state: state}).establish(t)
	g.await(20*time.Second, "203.0.113.70/32 via 192.0.2.11 path [64512]")
	close(c.off)
	g.await(config.HoldTime + 20*time.Second)
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "hold timer expired") {
		t.Errorf("the session ended with %v", err)
	}
}

// mute is a connection whose packets are lost after off is closed.
type mute struct {
	net.Conn
	off chan struct{}
}

func (m *mute) Write(b []byte) (int, error) {
	select {
	case <-m.off:
		return len(b), nil
	default:
		return m.Conn.Write(b)
	}
}

// TestGoBGPProtected: a session with a password and a hop limit of one works, and a connection with
// a wrong password fails.
func TestGoBGPProtected(t *testing.T) {
	g := newGoBGP(t, "secret", true)
	s, err := speak(t, Peer{Address: g.at, Password: "secret", OneHop: true, Source: netip.MustParseAddr("127.0.0.1")}, config)
	g.check(err)
	s.establish(t)
	s.stop()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if conn, err := Dial(ctx, Peer{Address: g.at, Password: "wrong", OneHop: true}); err == nil {
		conn.Close()
		t.Error("Dial with a wrong password returned no error")
	}
	if _, err := Dial(t.Context(), Peer{Address: g.at, Source: netip.MustParseAddr("192.0.2.99")}); err == nil {
		t.Error("Dial accepted a source address of another machine")
	}
	if _, err := Dial(t.Context(), Peer{Address: g.at, Password: strings.Repeat("p", maxPassword+1)}); err == nil || !strings.Contains(err.Error(), "the password has 81 bytes, expected at most 80") {
		t.Errorf("error for a password that is too long: %v", err)
	}
}

// TestSessionReceives: a session of this package receives the routes of another session of this
// package.
func TestSessionReceives(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err := Dial(t.Context(), Peer{Address: netip.MustParseAddrPort(l.Addr().String())})
	if err != nil {
		t.Fatal(err)
	}
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	routes := cell.New([]netip.Prefix{netip.MustParsePrefix("203.0.113.70/32"), netip.MustParsePrefix("2001:db8:1::70/128")})
	router := Config{ASN: routerASN, RouterID: netip.MustParseAddr("192.0.2.1"), HoldTime: 3 * time.Second, Receives: true}
	ctx, cancel := context.WithCancelCause(t.Context())
	got, ended := make(chan string, 10), make(chan error, 2)
	go func() { ended <- Serve(ctx, near, config, routes.Watch(), Hooks{}) }()
	go func() {
		ended <- Serve(t.Context(), far, router, cell.New([]netip.Prefix(nil)).Watch(), Hooks{Update: func(from Open, u Update) {
			got <- fmt.Sprintf("%d %s", from.ASN, Message{Kind: UpdateMessage, Update: u})
		}})
	}()
	for _, want := range []string{"64512 announce [203.0.113.70/32] via 192.0.2.11 path [64512]",
		"64512 announce [2001:db8:1::70/128] via 2001:db8::11 path [64512]", "64512 end of the first routes"} {
		if g := <-got; g != want {
			t.Errorf("received %q, want %q", g, want)
		}
	}
	cancel(errors.New("stopped"))
	if err := errors.Join(<-ended, <-ended); !strings.Contains(err.Error(), "the peer ended the session: 6(cease) subcode 2(administrative shutdown)") {
		t.Errorf("ended with %v", err)
	}
}

// FuzzRead: the function read returns an error or a message for arbitrary octets of a peer, and
// never reads beyond one message.
func FuzzRead(f *testing.F) {
	for _, m := range []Message{
		{Kind: KeepaliveMessage}, {Kind: NotificationMessage, Notification: adminShutdown},
		{Kind: OpenMessage, Open: Open{ASN: 4200000000, HoldTime: 9 * time.Second, RouterID: config.RouterID, IPv4: true, IPv6: true}},
		{Kind: UpdateMessage, Update: Update{Announced: []netip.Prefix{netip.MustParsePrefix("2001:db8::1/128")}, NextHop: config.NextHops[1], Path: []uint32{1}}},
	} {
		b, err := m.encode(false, true)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(b[:len(b)-1])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := &counted{r: strings.NewReader(string(b))}
		m, err := read(r, true, true)
		if r.n > maxMessage {
			t.Errorf("%d octets were read", r.n)
		}
		if errors.Is(err, errPanic) {
			t.Error(err)
		}
		s, _ := begin(config, time.Now())
		if err == nil {
			_, _, _ = s.receive(time.Now(), m)
		}
	})
}

type counted struct {
	r io.Reader
	n int
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += n
	return n, err
}
