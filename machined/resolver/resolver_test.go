//go:build linux

package resolver

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/pki"
)

// server is a resolver over TLS on loopback, which resolves the names below example.
type server struct {
	address netip.AddrPort
	cas     string
	asked   atomic.Int32
	rcode   atomic.Int32 // response code of all responses
	plain   *atomic.Int32
}

// newServer starts a resolver. Its certificate is for name, or for its address if name is empty.
// The certificate is valid for an hour from the time issued. The resolver also counts UDP queries
// at the same port: the forwarder must send none.
func newServer(t *testing.T, name string, issued time.Time) *server {
	t.Helper()
	ca, err := pki.NewCAAt("dns", 1000*time.Hour, issued)
	if err != nil {
		t.Fatal(err)
	}
	spec := pki.Spec{CN: "dns", Usage: pki.Server, TTL: time.Hour, Now: issued}
	if name == "" {
		spec.IPs = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	} else {
		spec.DNS = []string{name}
	}
	leaf, err := ca.Issue(spec)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Cert.Raw}, PrivateKey: leaf.Key}}})
	if err != nil {
		t.Fatal(err)
	}
	s := &server{address: listener.Addr().(*net.TCPAddr).AddrPort(), cas: string(ca.CertPEM()), plain: new(atomic.Int32)}
	conn, err := net.ListenPacket("udp", s.address.String())
	if err != nil {
		t.Fatal(err)
	}
	handle := func(count *atomic.Int32) dns.Handler {
		return dns.HandlerFunc(func(w dns.ResponseWriter, m *dns.Msg) {
			count.Add(1)
			w.WriteMsg(s.reply(m))
		})
	}
	for _, d := range []*dns.Server{{Listener: listener, Handler: handle(&s.asked)}, {PacketConn: conn, Handler: handle(s.plain)}} {
		go d.ActivateAndServe() // ends at Shutdown
		t.Cleanup(func() { d.Shutdown() })
	}
	return s
}

// reply answers each A query with an address. For big.example it returns so many addresses that
// they need 20 KiB.
func (s *server) reply(m *dns.Msg) *dns.Msg {
	r := new(dns.Msg).SetReply(m)
	r.Rcode = int(s.rcode.Load())
	if r.Rcode != dns.RcodeSuccess {
		return r
	}
	count := 1
	if strings.HasPrefix(m.Question[0].Name, "big.") {
		count = 1280
	}
	for i := range count {
		r.Answer = append(r.Answer, &dns.A{Hdr: dns.RR_Header{Name: m.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 5}, A: net.IPv4(192, 0, byte(i>>8), byte(i))})
	}
	return r
}

// fixture is a running forwarder.
type fixture struct {
	*Forwarder
	config   *cell.Cell[Config]
	failures *atomic.Int32 // number of events of kind "failure"
}

// known returns the ClockView of a clock that shows the right time.
func known() pki.ClockView { return pki.ClockView{Now: time.Now()} }

func start(t *testing.T, cfg Config, clock func() pki.ClockView) fixture {
	t.Helper()
	f := fixture{config: cell.New(cfg), failures: new(atomic.Int32)}
	event := func(kind, message string) {
		t.Log(kind, message)
		if kind == "failure" {
			f.failures.Add(1)
		}
	}
	f.Forwarder = New(Deps{Config: f.config.View(), Clock: clock, Listen: netip.MustParseAddrPort("127.0.0.1:0"), Event: event})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); f.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return f
}

// address waits until the forwarder listens.
func (f fixture) address(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	st, err := cell.Wait(ctx, f.State(), func(s State) bool { return s.Address.IsValid() })
	if err != nil {
		t.Fatal(err)
	}
	return st.Address.String()
}

// ask queries the forwarder.
func (f fixture) ask(t *testing.T, network, name string, size uint16) *dns.Msg {
	t.Helper()
	m := new(dns.Msg).SetQuestion(name, dns.TypeA)
	if size > 0 {
		m.SetEdns0(size, false)
	}
	r, _, err := (&dns.Client{Net: network, Timeout: 10 * time.Second}).Exchange(m, f.address(t))
	if err != nil {
		t.Fatalf("%s %s: %v", network, name, err)
	}
	return r
}

// TestForward checks that names resolve over TLS, by UDP and TCP, with and without EDNS, and that
// large UDP responses are truncated.
func TestForward(t *testing.T) {
	s := newServer(t, "", time.Now())
	f := start(t, Config{Servers: []netip.AddrPort{s.address}, CAs: pki.ServerCAs{Own: s.cas}}, known)
	for _, c := range []struct {
		network, name string
		size          uint16
		records       int
		truncated     bool
	}{
		{"udp", "a.example.", 0, 1, false},
		{"udp", "a.example.", 1232, 1, false},
		{"tcp", "a.example.", 0, 1, false},
		{"udp", "big.example.", 0, 0, true},
		{"udp", "big.example.", 65535, 0, true},
		{"tcp", "big.example.", 0, 1280, false},
	} {
		r := f.ask(t, c.network, c.name, c.size)
		if r.Rcode != dns.RcodeSuccess || len(r.Answer) != c.records || r.Truncated != c.truncated || len(r.Question) != 1 || r.Question[0].Name != c.name {
			t.Errorf("query %+v: the response is %v", c, r)
		}
	}
	if n := s.plain.Load(); n != 0 {
		t.Errorf("%d queries without TLS", n)
	}
	if st, _ := f.State().Get(); st.Problem != "" || len(st.Servers) != 1 {
		t.Errorf("the state after successful queries is %+v", st)
	}
}

// TestGo checks that the resolver of Go, which the programs of the machine use, works with the
// forwarder.
func TestGo(t *testing.T) {
	s := newServer(t, "dns.example", time.Now())
	f := start(t, Config{Servers: []netip.AddrPort{s.address}, Name: "dns.example", CAs: pki.ServerCAs{Own: s.cas}}, known)
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, f.address(t))
	}}
	if got, err := r.LookupHost(t.Context(), "big.example."); err != nil || len(got) != 1280 {
		t.Errorf("%d addresses, %v", len(got), err)
	}
}

// TestStrict checks that queries fail if the resolver has no valid certificate, and that the
// forwarder sends no query without TLS.
func TestStrict(t *testing.T) {
	now := time.Now()
	unknown := func(floor time.Time) func() pki.ClockView {
		return func() pki.ClockView { return pki.ClockView{Now: now.AddDate(-50, 0, 0), Floor: floor, Unknown: true} }
	}
	s, other, old, named := newServer(t, "", now), newServer(t, "", now), newServer(t, "", now.Add(-2*time.Hour)), newServer(t, "dns.example", now)
	of := func(s *server, name, cas string) Config {
		return Config{Servers: []netip.AddrPort{s.address}, Name: name, CAs: pki.ServerCAs{Own: cas}}
	}
	for _, c := range []struct {
		name  string
		to    *server
		cfg   Config
		clock func() pki.ClockView
		want  string // part of the problem; empty for none
	}{
		{"another CA", s, of(s, "", other.cas), known, "unknown authority"},
		{"the public CAs", s, of(s, "", ""), known, "unknown authority"},
		{"no usable CA", s, of(s, "", "nothing"), known, "unknown authority"},
		{"another name", s, of(s, "dns.example", s.cas), known, "not valid for any names"},
		{"a certificate for a name, not for the address", named, of(named, "", named.cas), known, "cannot validate certificate for 127.0.0.1"},
		{"an expired certificate", old, of(old, "", old.cas), known, "expired"},
		{"a clock in the past that is not marked as unknown", s, of(s, "", s.cas), func() pki.ClockView { return pki.ClockView{Now: now.AddDate(-50, 0, 0)} }, "not yet valid"},
		{"an unknown clock, a certificate that expired before the floor", old, of(old, "", old.cas), unknown(now), "expired"},
		{"an unknown clock", s, of(s, "", s.cas), unknown(now.Add(-20 * time.Hour)), ""},
		{"a certificate for the name", named, of(named, "dns.example", named.cas), known, ""},
	} {
		f := start(t, c.cfg, c.clock)
		r := f.ask(t, "udp", "a.example.", 0)
		st, _ := f.State().Get()
		if (r.Rcode == dns.RcodeSuccess) != (c.want == "") || (st.Problem == "") != (c.want == "") || !strings.Contains(st.Problem, c.want) {
			t.Errorf("%s: the response is %s, the state %+v; want the problem %q", c.name, dns.RcodeToString[r.Rcode], st, c.want)
		}
		if c.want != "" && (r.Rcode != dns.RcodeServerFailure || c.to.plain.Load() != 0) {
			t.Errorf("%s: %s, %d queries without TLS", c.name, dns.RcodeToString[r.Rcode], c.to.plain.Load())
		}
	}
}

// TestSeveral checks that the second resolver gets a query if the first resolver answers with a
// failure or does not answer. After an answer with a failure, the next query is sent to the first
// resolver again.
func TestSeveral(t *testing.T) {
	first, second := newServer(t, "dns.example", time.Now()), newServer(t, "dns.example", time.Now())
	f := start(t, Config{Servers: []netip.AddrPort{first.address, second.address}, Name: "dns.example", CAs: pki.ServerCAs{Own: first.cas + second.cas}}, known)
	ask := func(what string, want int, firstAsked, secondAsked int32) {
		t.Helper()
		r := f.ask(t, "udp", "a.example.", 0)
		if r.Rcode != want || first.asked.Load() != firstAsked || second.asked.Load() != secondAsked {
			t.Errorf("%s: %s, asked %d and %d times; want %s, %d and %d", what, dns.RcodeToString[r.Rcode], first.asked.Load(), second.asked.Load(), dns.RcodeToString[want], firstAsked, secondAsked)
		}
	}
	ask("both answer", dns.RcodeSuccess, 1, 0)
	first.rcode.Store(dns.RcodeNameError)
	ask("the first answers that the name does not exist", dns.RcodeNameError, 2, 0)
	first.rcode.Store(dns.RcodeServerFailure)
	ask("the first fails", dns.RcodeSuccess, 3, 1)
	second.rcode.Store(dns.RcodeRefused)
	ask("both fail", dns.RcodeRefused, 4, 2)
	first.rcode.Store(dns.RcodeSuccess)
	ask("the first answers again", dns.RcodeSuccess, 5, 2)

	third := netip.MustParseAddrPort("127.0.0.1:1") // nothing listens there
	second.rcode.Store(dns.RcodeSuccess)
	f.config.Set(Config{Servers: []netip.AddrPort{third, second.address}, Name: "dns.example", CAs: pki.ServerCAs{Own: second.cas}})
	if _, err := cell.Wait(t.Context(), f.State(), func(s State) bool { return s.Address.IsValid() && s.Servers[0] == third.String() }); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		ask(fmt.Sprint("the first does not answer, query ", i), dns.RcodeSuccess, 5, int32(3+i))
	}
	f.config.Set(Config{})
	if _, err := cell.Wait(t.Context(), f.State(), func(s State) bool { return len(s.Servers) == 0 }); err != nil {
		t.Fatal(err)
	}
}

// TestForger checks that an attacker in the place of the resolvers causes only a single event,
// although each response causes another problem. The published problem has a bounded length and no
// control characters.
func TestForger(t *testing.T) {
	reset, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer reset.Close()
	go func() {
		for { // The loop ends when its socket is closed.
			conn, err := reset.AcceptTCP()
			if err != nil {
				return
			}
			conn.Read(make([]byte, 1))
			// The reset puts the port of the forwarder into the error, so each error differs.
			conn.SetLinger(0)
			conn.Close()
		}
	}()
	long := newServer(t, strings.Repeat("a\x1b", 50000), time.Now())
	f := start(t, Config{Servers: []netip.AddrPort{reset.Addr().(*net.TCPAddr).AddrPort(), long.address}, Name: "dns.example", CAs: pki.ServerCAs{Own: long.cas}}, known)
	problems := map[string]bool{}
	for range 3 {
		if r := f.ask(t, "udp", "a.example.", 0); r.Rcode != dns.RcodeServerFailure {
			t.Errorf("the response is %s, want SERVFAIL", dns.RcodeToString[r.Rcode])
		}
		st, _ := f.State().Get()
		problems[st.Problem] = true
		if !strings.Contains(st.Problem, long.address.String()) || len(st.Problem) > 3*maxProblem || strings.ContainsAny(st.Problem, "\x1b\n") {
			t.Errorf("the problem has %d bytes: %.100q", len(st.Problem), st.Problem)
		}
	}
	if n := f.failures.Load(); n != 1 || len(problems) < 2 {
		t.Errorf("%d events for %d problems", n, len(problems))
	}
}

// TestEvent checks that only the begin and the end of problems cause an event. A change from one
// problem to another causes no event, and concurrent queries that succeed report a single recovery.
func TestEvent(t *testing.T) {
	for _, c := range []struct{ before, after, want string }{
		{"", "refused", "failure refused"}, {"refused", "reset", " "},
		{"reset", "", "recovery DNS over TLS: a resolver answers"}, {"", "", " "},
	} {
		kind, message := event(c.before, c.after)
		if got := kind + " " + message; got != c.want {
			t.Errorf("from %q to %q: %q, want %q", c.before, c.after, got, c.want)
		}
	}
}

// FuzzQuery checks that no message of a client causes a panic, or a response that is larger than
// the client accepts.
func FuzzQuery(f *testing.F) {
	for _, size := range []uint16{0, 1232} {
		m := new(dns.Msg).SetQuestion("a.example.", dns.TypeA)
		if size > 0 {
			m.SetEdns0(size, true)
		}
		packed, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(packed)
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		q, err := parseQuery(message)
		if err != nil {
			return
		}
		if q.size < plainSize || q.size > maxDatagram {
			t.Errorf("the size %d is out of range", q.size)
		}
		answer := make([]byte, maxMessage)
		copy(answer, message)
		for _, out := range [][]byte{q.datagram(answer), q.failure(dnsmessage.RCodeServerFailure, false)} {
			if len(out) > q.size || len(out) > 0 && !q.answers(out) {
				t.Errorf("a response is too large, or answers another query: % x", out)
			}
		}
	})
}
