package resolver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/sanitize"
)

// Port is the port of DNS over TLS (RFC 7858, 3.1).
const Port = 853

const (
	// maxQueries is the largest number of queries at the same time. The forwarder drops further
	// queries by UDP, and their clients repeat them.
	maxQueries = 64
	// maxClients is the largest number of TCP connections of clients.
	maxClients = 16
	// maxProblem is the largest length of a resolver's problem, in bytes. The problem quotes the
	// certificate of the other host, which can be an attacker and send a certificate of any size.
	maxProblem = 500
)

// retry is the delay before the forwarder opens its sockets again after a failure.
var retry = backoff.Backoff{Min: time.Second, Max: time.Minute}

// Config describes the resolvers. A Config is not changed after its publication.
type Config struct {
	Servers []netip.AddrPort // in the order of their use; if empty, the package does nothing
	Name    string           // the name in the certificates; if empty, the server's address
	CAs     pki.ServerCAs    // the CAs that may issue the certificates
}

func (c Config) equal(o Config) bool {
	return slices.Equal(c.Servers, o.Servers) && c.Name == o.Name && c.CAs == o.CAs
}

// State is the state that the forwarder publishes.
type State struct {
	Servers []string `json:"servers"` // resolvers over TLS; if empty, queries use no TLS
	// Address is the address to which the programs of the machine send their queries.
	Address netip.AddrPort `json:"address,omitzero"`
	Problem string         `json:"problem,omitempty"`
}

// Deps are the dependencies of a Forwarder.
type Deps struct {
	Config cell.View[Config]
	Clock  func() pki.ClockView
	Listen netip.AddrPort // the loopback address of the sockets
	Event  func(kind, message string)
}

// Forwarder forwards DNS queries.
type Forwarder struct {
	deps  Deps
	state *cell.Cell[State]
}

// New returns a Forwarder. It does nothing until Run.
func New(d Deps) *Forwarder { return &Forwarder{deps: d, state: cell.New(State{Servers: []string{}})} }

// State returns the published state.
func (f *Forwarder) State() *cell.Cell[State] { return f.state }

// Run forwards queries while the configuration has servers, until ctx is done.
func (f *Forwarder) Run(ctx context.Context) {
	watch := f.deps.Config.Watch()
	cfg, _, err := watch.Next(ctx)
	for err == nil {
		round, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(panics.Guarded("DNS over TLS", func() { f.serve(round, cfg) }))
		next := cfg
		for err == nil && next.equal(cfg) {
			next, _, err = watch.Next(ctx)
		}
		cancel()
		wg.Wait()
		cfg = next
	}
}

// serve forwards queries with the configuration cfg until ctx is done. If the sockets fail, it
// opens them again after a delay.
func (f *Forwarder) serve(ctx context.Context, cfg Config) {
	state := State{Servers: []string{}}
	for _, s := range cfg.Servers {
		state.Servers = append(state.Servers, s.String())
	}
	f.state.Set(state)
	for failures := 1; len(cfg.Servers) > 0 && ctx.Err() == nil; failures++ {
		err := f.listen(ctx, cfg)
		if ctx.Err() != nil {
			return
		}
		f.report(fmt.Errorf("DNS over TLS: cannot serve: %w", err))
		if backoff.Sleep(ctx, retry.Delay(failures)) != nil {
			return
		}
	}
}

// report publishes the current problem, or its end if err is nil. It adds an event if needed.
func (f *Forwarder) report(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if s, _ := f.state.Get(); s.Problem == text {
		return
	}
	var before string
	f.state.Update(func(s State) State { before, s.Problem = s.Problem, text; return s })
	if kind, message := event(before, text); kind != "" {
		f.deps.Event(kind, message)
	}
}

// event returns the event for a change of the problem from before to after; the kind is empty if
// there is none. Only the first problem and the end of the last problem are events. A change from
// one problem to another is no event, because the text can differ for each query, for example by a
// port or by the certificate of an attacker. If before and after are equal, a concurrent query has
// reported the change.
func event(before, after string) (kind, message string) {
	switch {
	case before == "" && after != "":
		return "failure", after
	case before != "" && after == "":
		return "recovery", "DNS over TLS: a resolver answers"
	}
	return "", ""
}

// session forwards queries with one configuration.
type session struct {
	forwarder *Forwarder
	upstreams []*upstream
	queries   chan struct{} // holds one element for each query in progress
}

func (f *Forwarder) listen(ctx context.Context, cfg Config) error {
	roots := cfg.CAs.Roots()
	s := &session{forwarder: f, queries: make(chan struct{}, maxQueries)}
	for _, a := range cfg.Servers {
		s.upstreams = append(s.upstreams, newUpstream(a, cfg.Name, roots, f.deps.Clock))
	}
	conn, listener, err := open(ctx, f.deps.Listen)
	if err != nil {
		return err
	}
	address := conn.LocalAddr().(*net.UDPAddr).AddrPort()
	f.state.Update(func(s State) State { s.Address, s.Problem = address, ""; return s })
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(ctx, func() { conn.Close(); listener.Close() })
	defer stop()
	var wg sync.WaitGroup
	// After a panic, as after any other failure, both sockets close, and serve opens them again.
	wg.Go(func() { cancel(panics.Do("DNS by UDP", func() error { return s.serveUDP(ctx, conn, &wg) })) })
	wg.Go(func() { cancel(panics.Do("DNS by TCP", func() error { return s.serveTCP(ctx, listener, &wg) })) })
	wg.Wait()
	conn.Close()
	listener.Close()
	for _, u := range s.upstreams {
		u.close()
	}
	return context.Cause(ctx)
}

// open opens the UDP and the TCP socket at the same address. IP_FREEBIND makes this possible before
// the loopback interface is up.
func open(ctx context.Context, at netip.AddrPort) (*net.UDPConn, *net.TCPListener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_FREEBIND, 1) })
		return errors.Join(err, failed)
	}}
	conn, err := lc.ListenPacket(ctx, "udp4", at.String())
	if err != nil {
		return nil, nil, err
	}
	listener, err := lc.Listen(ctx, "tcp4", conn.LocalAddr().String())
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return conn.(*net.UDPConn), listener.(*net.TCPListener), nil
}

func (s *session) serveUDP(ctx context.Context, conn *net.UDPConn, wg *sync.WaitGroup) error {
	buf := make([]byte, maxDatagram)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return err
		}
		q, err := parseQuery(slices.Clone(buf[:n]))
		if err != nil || !from.Addr().Unmap().IsLoopback() {
			continue
		}
		select {
		case s.queries <- struct{}{}:
		default:
			continue
		}
		wg.Go(panics.Guarded("DNS query", func() {
			defer func() { <-s.queries }()
			// Errors of the write are ignored: a client repeats a query without an answer.
			conn.WriteToUDPAddrPort(q.datagram(s.answer(ctx, q)), from)
		}))
	}
}

func (s *session) serveTCP(ctx context.Context, listener *net.TCPListener, wg *sync.WaitGroup) error {
	clients := make(chan struct{}, maxClients)
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		select {
		case clients <- struct{}{}:
		default:
			conn.Close()
			continue
		}
		wg.Go(panics.Guarded("DNS client", func() {
			defer func() { <-clients }()
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { conn.Close() })()
			_ = s.serveClient(ctx, conn) // The client sees the end of the connection.
		}))
	}
}

// serveClient answers the queries of a connection one after the other.
func (s *session) serveClient(ctx context.Context, conn net.Conn) error {
	for {
		if err := conn.SetDeadline(time.Now().Add(idleTimeout)); err != nil {
			return err
		}
		message, err := readMessage(conn)
		if err != nil {
			return err
		}
		q, err := parseQuery(message)
		if err != nil {
			return err
		}
		select {
		case s.queries <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		answer := s.answer(ctx, q)
		<-s.queries
		if err := conn.SetDeadline(time.Now().Add(idleTimeout)); err != nil {
			return err
		}
		if err := writeMessage(conn, answer); err != nil {
			return err
		}
	}
}

// answer returns the response to a query. It queries the resolvers in order until one responds;
// resolvers in their cooldown come last. If all fail, the response is the refusal of a resolver if
// there was one, and SERVFAIL otherwise. No query is sent without TLS.
func (s *session) answer(ctx context.Context, q query) []byte {
	order := slices.Clone(s.upstreams)
	rank := func(u *upstream) int {
		if u.rests() {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(order, func(a, b *upstream) int { return cmp.Compare(rank(a), rank(b)) })
	var refused []byte
	var problems []string
	for _, u := range order {
		answer, err := u.ask(ctx, q)
		switch {
		case err != nil:
			problems = append(problems, sanitize.ASCII(err.Error(), maxProblem))
		case failed(answer):
			refused = answer
		default:
			s.forwarder.report(nil)
			return answer
		}
	}
	if refused != nil {
		return refused
	}
	if ctx.Err() == nil {
		s.forwarder.report(fmt.Errorf("DNS over TLS: no resolver answers, and queries without TLS are not sent: %s", strings.Join(problems, "; ")))
	}
	return q.failure(dnsmessage.RCodeServerFailure, false)
}
