//go:build linux

package timesync

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/machined/timesync/nts/ntstest"
	"github.com/orlop-os/orlop/pkg/pki"
)

// newCA returns a CA that is valid from ten years ago to ten years ahead.
func newCA(t *testing.T) *pki.CA {
	t.Helper()
	ca, err := pki.NewCAAt("time", 20*365*day, time.Now().Add(-10*365*day))
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// newSecure starts a server with NTS on loopback, and returns it with its address for key
// exchanges. The certificate of the server is valid from now+from to now+to. The clock of the
// server is ahead of the real time by the duration off.
func newSecure(t *testing.T, ca *pki.CA, from, to, off time.Duration) (*ntstest.Server, string) {
	t.Helper()
	s, err := ntstest.New(ca, pki.Spec{CN: "time", IPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Now: time.Now().Add(from), TTL: to - from})
	if err != nil {
		t.Fatal(err)
	}
	s.Now = func() time.Time { return time.Now().Add(off) }
	exchanges, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	packets, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); s.Serve(exchanges, packets) }()
	t.Cleanup(func() { exchanges.Close(); packets.Close(); <-done })
	return s, exchanges.Addr().String()
}

// newRun returns a run with a floor of a year ago. known is true if the clock was synchronized
// since boot.
func newRun(ca *pki.CA, known bool, servers ...string) run {
	r := run{
		Deps:    Deps{Clock: Clock{Now: time.Now}, Floor: NewFloor(time.Now().Add(-365*day), time.Now())},
		sources: Sources{Servers: servers, NTS: true, CAs: pki.ServerCAs{Own: string(ca.CertPEM())}}, known: new(synced), associations: map[string]*association{},
	}
	for _, s := range servers {
		r.associations[s] = new(association)
	}
	if known {
		r.known.last = time.Now()
	}
	return r
}

// TestNTS checks that an authenticated server steps the clock, in the first round and later, and
// that the status shows NTS. A server with a certificate of another CA and a server without NTS
// have no effect.
func TestNTS(t *testing.T) {
	ca := newCA(t)
	good, address := newSecure(t, ca, -day, day, time.Hour)
	_, stranger := newSecure(t, newCA(t), -day, day, 5*time.Hour)
	plain := newResponder(t, 5*time.Hour)
	b := newBench(t)
	b.sources.Set(Sources{Servers: []string{address, stranger, plain.address}, NTS: true, CAs: pki.ServerCAs{Own: string(ca.CertPEM())}})
	st := b.wait(t, "synchronised", func(s Status) bool { return s.Synced })
	if !st.NTS || st.Server != address || st.Quorum || len(st.Answers) != 3 || good.Exchanges.Load() != 1 || plain.asked.Load() != 0 {
		t.Fatalf("status %+v, %d plain requests", st, plain.asked.Load())
	}
	if a := st.Answers[0]; a.Server != address || !a.Authenticated || a.Problem != "" || a.Offset.Round(time.Minute) != time.Hour {
		t.Errorf("the answer of the authenticated server is %+v", a)
	}
	for i, says := range []string{"unknown authority", "connection refused"} {
		if a := st.Answers[i+1]; a.Authenticated || a.Offset != 0 || !strings.Contains(a.Problem, says) {
			t.Errorf("%+v, want the problem %q", a, says)
		}
	}
	_, later := newSecure(t, ca, -day, day, 3*time.Hour)
	b.sources.Set(Sources{Servers: []string{later}, NTS: true, CAs: pki.ServerCAs{Own: string(ca.CertPEM())}})
	b.wait(t, "stepped again", func(s Status) bool { return s.Synced && s.Server == later })
	if moves := b.done(); len(moves) != 2 || moves[1] != "step 3h0m0s" {
		t.Errorf("moves %q", moves)
	}
	b.use(plain.address)
	st = b.wait(t, "refused without NTS", func(s Status) bool { return s.Problem != "" })
	if st.NTS || st.LastSync.IsZero() || st.Answers[0].Authenticated || !strings.Contains(st.Problem, ErrOneServer.Error()) {
		t.Errorf("status %+v", st)
	}
}

// TestCertificateTime checks at which times the certificate of a server has to be valid, before and
// after the first synchronization since boot.
func TestCertificateTime(t *testing.T) {
	for _, c := range []struct {
		name          string
		known         bool
		from, to, off time.Duration // validity of the certificate, error of the server's clock
		says          string        // part of the error; if empty, the answer is used
	}{
		{"valid", true, -day, day, 0, ""},
		{"expired", true, -60 * day, -30 * day, 0, "certificate has expired"},
		{"not yet valid", true, 30 * day, 60 * day, 0, "certificate has expired or is not yet valid"},
		{"unknown clock: valid", false, -day, day, 0, ""},
		{"unknown clock: 40 days behind", false, 30 * day, 60 * day, 40 * day, ""},
		{"unknown clock: 40 days ahead", false, -60 * day, -30 * day, -40 * day, ""},
		{"unknown clock: the server's time is after the certificate", false, -60 * day, -30 * day, 0, errWrongTime.Error()},
		{"unknown clock: the server's time is before the certificate", false, 30 * day, 60 * day, 0, errWrongTime.Error()},
		{"unknown clock: the certificate expired before the floor", false, -900 * day, -700 * day, -800 * day, "certificate has expired"},
		{"known clock: the server's time is after the certificate", true, -day, day, 2 * day, errWrongTime.Error()},
	} {
		t.Run(c.name, func(t *testing.T) {
			ca := newCA(t)
			_, address := newSecure(t, ca, c.from, c.to, c.off)
			got := newRun(ca, c.known, address).queryAll(t.Context())[0]
			switch {
			case c.says == "" && (got.err != nil || !got.sample.Authenticated || (got.sample.Offset-c.off).Abs() > time.Hour):
				t.Errorf("the answer is not used: %+v", got)
			case c.says != "" && (got.err == nil || !strings.Contains(got.err.Error(), c.says)):
				t.Errorf("the result is %+v, want the error %q", got, c.says)
			}
		})
	}
}

// TestNewKeys checks when the client replaces its keys, and that it waits before a new key
// exchange.
func TestNewKeys(t *testing.T) {
	ca := newCA(t)
	s, address := newSecure(t, ca, -day, day, 0)
	r := newRun(ca, true, address)
	expect := func(what, says string, exchanged int32) {
		t.Helper()
		got := r.queryAll(t.Context())[0]
		if (says == "") != (got.err == nil) || got.err != nil && !strings.Contains(got.err.Error(), says) || s.Exchanges.Load() != exchanged {
			t.Fatalf("%s: %v after %d key exchanges", what, got.err, s.Exchanges.Load())
		}
	}
	const nak = "NTS NAK"
	elapse := func() { r.associations[address].next = time.Now() }
	expect("the first query", "", 1)
	expect("the same keys", "", 1)
	s.Forget()
	expect("a NAK", nak, 1)
	expect("too early for an exchange", nak, 1)
	elapse()
	expect("new keys", "", 2)
	s.Change(func(_, answer []byte) []byte { answer[40] ^= 1; return answer })
	for range maxLost {
		expect("a forged answer", "not authenticated", 2)
	}
	elapse()
	expect("new keys, but still a forged answer", "not authenticated", 3)
	s.Change(nil)
	expect("an authentic answer with these keys", "", 3)
	if requests := s.Requests.Load(); requests != 9 {
		t.Errorf("%d requests", requests)
	}
}

// TestAuthenticatedRefusal checks that an authenticated answer without a usable time causes no key
// exchange.
func TestAuthenticatedRefusal(t *testing.T) {
	ca := newCA(t)
	s, address := newSecure(t, ca, -day, day, 0)
	s.Stratum.Store(16)
	r := newRun(ca, true, address)
	for range maxLost + 1 {
		if got := r.queryAll(t.Context())[0]; got.err == nil || !strings.Contains(got.err.Error(), "is not synchronized itself (stratum 16)") || got.sample.Authenticated {
			t.Fatalf("the result is %+v", got)
		}
	}
	if n := s.Exchanges.Load(); n != 1 {
		t.Errorf("%d key exchanges", n)
	}
}

// TestUnreachableServer checks that requests that cannot be sent count as lost. After maxLost of
// them the client drops its keys. The key exchange that follows also finds a new address of the
// server.
func TestUnreachableServer(t *testing.T) {
	ca := newCA(t)
	_, address := newSecure(t, ca, -day, day, 0)
	r := newRun(ca, true, address)
	if got := r.queryAll(t.Context())[0]; got.err != nil {
		t.Fatal(got.err)
	}
	gone := errors.New("no route to host")
	for i := range maxLost {
		if r.associations[address].session == nil {
			t.Fatalf("no keys after %d lost requests", i)
		}
		_, err := r.queryNTS(t.Context(), address, func(_, _ string) (net.Conn, error) { return nil, gone })
		if !errors.Is(err, gone) {
			t.Fatal(err)
		}
	}
	if r.associations[address].session != nil {
		t.Errorf("the client still has the keys after %d lost requests", maxLost)
	}
}

// TestSilentKeyExchange checks that a server that does not respond does not delay the use of a new
// list of servers.
func TestSilentKeyExchange(t *testing.T) {
	promptly(t, func() time.Duration {
		mute, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer mute.Close()
		b := newBench(t)
		b.sources.Set(Sources{Servers: []string{mute.Addr().String()}, NTS: true})
		conn, err := mute.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		good := newResponder(t, 0)
		began := time.Now()
		b.use(good.address)
		b.wait(t, "synchronised", func(s Status) bool { return s.Synced && s.Server == good.address })
		return time.Since(began)
	})
}

func TestKeyServer(t *testing.T) {
	for server, want := range map[string][2]string{
		"time.example":     {"time.example", "time.example:4460"},
		"192.0.2.1":        {"192.0.2.1", "192.0.2.1:4460"},
		"2001:db8::1":      {"2001:db8::1", "[2001:db8::1]:4460"},
		"127.0.0.1:1":      {"127.0.0.1", "127.0.0.1:1"},
		"[2001:db8::1]:99": {"2001:db8::1", "[2001:db8::1]:99"},
	} {
		if name, address := keyServer(server); name != want[0] || address != want[1] {
			t.Errorf("%s: the name is %s, and the address %s", server, name, address)
		}
	}
}
