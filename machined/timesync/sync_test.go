//go:build linux

package timesync

import (
	"context"
	"encoding/binary"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/cell"
)

// responder is an NTP server on loopback. Its clock is off by a settable offset.
type responder struct {
	address string
	kiss    string
	asked   atomic.Int32
	off     atomic.Int64 // nanoseconds
	silent  atomic.Bool
	// header replaces the first two bytes of answers (RFC 5905 section 7.3): the first has leap
	// indicator, version and mode, the second the stratum. If it is nil, answers are those of a
	// synchronized server.
	header atomic.Pointer[[2]byte]
}

func newResponder(t *testing.T, off time.Duration) *responder { return newKissing(t, off, "") }

// newKissing starts a responder. Its answers with stratum 0 have kiss as their reference
// identifier.
func newKissing(t *testing.T, off time.Duration, kiss string) *responder {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &responder{address: c.LocalAddr().String(), kiss: kiss}
	r.off.Store(int64(off))
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 512)
		for {
			n, peer, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			r.asked.Add(1)
			if n < 48 || r.silent.Load() {
				continue
			}
			answer := reply(buf[:48], time.Duration(r.off.Load()))
			if h := r.header.Load(); h != nil {
				copy(answer, h[:])
				if h[1] == 0 {
					copy(answer[12:16], r.kiss)
				}
			}
			_, _ = c.WriteTo(answer, peer)
		}
	}()
	t.Cleanup(func() {
		c.Close()
		<-done
	})
	return r
}

// reply returns the answer to an NTPv4 request (RFC 5905 section 7.3). off is the offset of the
// server's clock.
func reply(request []byte, off time.Duration) []byte {
	out := make([]byte, 48)
	out[0] = 4<<3 | 4 // version 4, mode server
	out[1] = 1        // stratum
	out[3] = 0xec     // precision 2^-20 s
	copy(out[12:16], "TEST")
	now := stamp(time.Now().Add(off))
	binary.BigEndian.PutUint64(out[16:], stamp(time.Now().Add(off-time.Second))) // reference
	// The origin timestamp is the transmit timestamp of the request.
	copy(out[24:32], request[40:48])
	binary.BigEndian.PutUint64(out[32:], now) // receive
	binary.BigEndian.PutUint64(out[40:], now) // transmit
	return out
}

// stamp returns an NTP timestamp: the seconds since 1900 in the upper 32 bits, and the fraction of
// a second, in units of 2^-32 s, in the lower 32 bits.
func stamp(t time.Time) uint64 {
	const from1900 = 2208988800
	return uint64(t.Unix()+from1900)<<32 | uint64(t.Nanosecond())<<32/1e9
}

// bench runs Run with a clock that only records its adjustments.
type bench struct {
	sources *cell.Cell[Sources]
	status  *cell.Cell[Status]
	mu      sync.Mutex
	moves   []string
	shown   atomic.Int64 // offset of the PTP clock, ns
}

func newBench(t *testing.T, servers ...string) *bench {
	t.Helper()
	b := &bench{sources: cell.New(Sources{Servers: servers}), status: cell.New(Status{})}
	note := func(what string) func(time.Duration) error {
		return func(by time.Duration) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.moves = append(b.moves, what+" "+by.Round(time.Second).String())
			return nil
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- Run(ctx, Deps{
			Sources: b.sources, PTP: b.ptp(t), Status: b.status, Log: func(string) {},
			Clock: Clock{Now: time.Now, Step: note("step"), Slew: note("slew")}, Floor: NewFloor(time.Now().Add(-24*time.Hour), time.Now()),
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != context.Canceled {
			t.Errorf("Run ended with %v", err)
		}
	})
	return b
}

func (b *bench) wait(t *testing.T, what string, ok func(Status) bool) Status {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	st, err := cell.Wait(ctx, b.status, ok)
	if err != nil {
		t.Fatalf("not %s: %+v", what, st)
	}
	return st
}

// use replaces the list of servers by servers without NTS.
func (b *bench) use(servers ...string) { b.sources.Set(Sources{Servers: servers}) }

func (b *bench) done() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.moves)
}

func TestStep(t *testing.T) {
	r := newResponder(t, time.Hour)
	b := newBench(t, r.address)
	st := b.wait(t, "synchronised", func(s Status) bool { return s.Synced })
	if !slices.Equal(b.done(), []string{"step 1h0m0s"}) || st.Server != r.address || st.Stratum != 1 {
		t.Errorf("moves %q, status %+v", b.done(), st)
	}
}

func TestSlew(t *testing.T) {
	b := newBench(t, newResponder(t, 20*time.Millisecond).address)
	b.wait(t, "synchronised", func(s Status) bool { return s.Synced })
	if !slices.Equal(b.done(), []string{"slew 0s"}) {
		t.Errorf("moves %q", b.done())
	}
}

func TestBeforeBuildIsRefused(t *testing.T) {
	r := newResponder(t, -48*time.Hour)
	b := newBench(t, r.address)
	st := b.wait(t, "refused", func(s Status) bool { return s.Problem != "" })
	if st.Synced || len(b.done()) != 0 || !strings.Contains(st.Problem, ErrBeforeBuild.Error()) {
		t.Errorf("moves %q, status %+v", b.done(), st)
	}
	r.off.Store(0) // The server now has the right time, and gets the next request within seconds.
	b.wait(t, "synchronised", func(s Status) bool { return s.Synced })
}

// TestUnsynchronised checks the errors for unsynchronized servers, and for servers that reject the
// client.
func TestUnsynchronised(t *testing.T) {
	const synced, leap3 = 4<<3 | 4, 3<<6 | 4<<3 | 4
	for _, c := range []struct {
		name   string
		header [2]byte
		kiss   string
		says   string
	}{
		{"chrony that is not synchronized", [2]byte{leap3, 0}, "", "is not synchronized itself (stratum 0, leap indicator 3)"},
		{"stratum 0", [2]byte{synced, 0}, "", "is not synchronized itself (stratum 0)"},
		{"ntpd that has just started", [2]byte{leap3, 0}, "INIT", "is not synchronized itself (stratum 0, leap indicator 3)"},
		{"stratum 16", [2]byte{synced, 16}, "", "is not synchronized itself (stratum 16)"},
		{"a leap indicator of 3", [2]byte{leap3, 3}, "", "is not synchronized itself (stratum 3, leap indicator 3)"},
		{"a server that refuses", [2]byte{synced, 0}, "DENY", "refuses to serve this machine (kiss of death DENY)"},
		{"a server that gets too many requests", [2]byte{synced, 0}, "RATE", "rejects too many requests (kiss of death RATE)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newKissing(t, 0, c.kiss)
			r.header.Store(&c.header)
			b := newBench(t, r.address)
			st := b.wait(t, "refused", func(s Status) bool { return s.Problem != "" })
			if !strings.Contains(st.Problem, c.says) || strings.Contains(st.Problem, "kiss") != strings.Contains(c.says, "kiss") {
				t.Errorf("problem %q, want %q", st.Problem, c.says)
			}
		})
	}
}

// TestSynchronisedOnce checks that a new list with a single server does not step a synchronized
// clock, and that a new list with two servers that agree does.
func TestSynchronisedOnce(t *testing.T) {
	first, liar, other := newResponder(t, 0), newResponder(t, 5*time.Hour), newResponder(t, 5*time.Hour)
	b := newBench(t, first.address)
	b.wait(t, "synchronised", func(s Status) bool { return s.Synced })
	b.use(liar.address)
	st := b.wait(t, "refused", func(s Status) bool { return s.Problem != "" })
	if st.Synced || !strings.Contains(st.Problem, ErrOneServer.Error()) || len(b.done()) != 1 {
		t.Errorf("moves %q, status %+v", b.done(), st)
	}
	b.use(liar.address, other.address)
	b.wait(t, "stepped", func(s Status) bool { return s.Synced && s.Quorum })
	if moves := b.done(); !slices.Equal(moves, []string{"slew 0s", "step 5h0m0s"}) {
		t.Errorf("moves %q", moves)
	}
}

// TestNoServer checks that no packet is sent without a configured server: before the list has a
// server, and after the server is removed.
func TestNoServer(t *testing.T) {
	r := newResponder(t, 0)
	b := newBench(t)
	b.use(r.address)
	b.wait(t, "synchronised", func(s Status) bool { return s.Synced })
	b.use(r.address) // The same list causes no further round.
	b.use()
	b.wait(t, "idle", func(s Status) bool { return len(s.Servers) == 0 && !s.Synced })
	if n := r.asked.Load(); n != 1 {
		t.Errorf("the server was asked %d times, want once", n)
	}
}

// TestSilentServer checks that a silent server does not delay the use of the next list.
func TestSilentServer(t *testing.T) {
	promptly(t, func() time.Duration {
		mute, good := newResponder(t, 0), newResponder(t, 0)
		mute.silent.Store(true)
		b := newBench(t, mute.address)
		start := time.Now()
		b.use(good.address)
		b.wait(t, "synchronised", func(s Status) bool { return s.Synced && s.Server == good.address })
		return time.Since(start)
	})
}

// promptly fails the test if the next list waits for the timeout of a query in each of ten
// attempts. A fault in Run delays every attempt; a busy computer delays only some attempts.
func promptly(t *testing.T, attempt func() time.Duration) {
	t.Helper()
	var waited []time.Duration
	for range 10 {
		took := attempt()
		if took < queryTimeout/2 {
			return
		}
		waited = append(waited, took)
	}
	t.Errorf("in each attempt, the use of the next list was delayed: %v", waited)
}

// answering is a connection to a server that answers every request with the same bytes. It copies
// the origin timestamp from the request, because the client otherwise discards the answer without
// reading its other fields.
type answering struct {
	net.Conn // provides the methods that the client does not call
	answer   []byte
	asked    []byte
}

func (a *answering) Write(b []byte) (int, error) {
	a.asked = append([]byte(nil), b...)
	return len(b), nil
}
func (a *answering) Read(b []byte) (int, error) {
	n := copy(b, a.answer)
	if n >= 48 && len(a.asked) >= 48 {
		copy(b[24:32], a.asked[40:48])
	}
	return n, nil
}
func (*answering) Close() error                     { return nil }
func (*answering) SetDeadline(time.Time) error      { return nil }
func (*answering) LocalAddr() net.Addr              { return &net.UDPAddr{} }
func (*answering) RemoteAddr() net.Addr             { return &net.UDPAddr{} }
func (*answering) SetReadDeadline(time.Time) error  { return nil }
func (*answering) SetWriteDeadline(time.Time) error { return nil }

// FuzzAnswer checks that an arbitrary answer of a time server is rejected, or sets the clock within
// the limits for a single server.
func FuzzAnswer(f *testing.F) {
	whole := make([]byte, 48)
	whole[0], whole[1] = 4<<3|4, 2 // version 4, server; stratum 2
	f.Add(whole)
	f.Add(whole[:47])
	f.Fuzz(func(t *testing.T, answer []byte) {
		s, err := query("fuzz", func(_, _ string) (net.Conn, error) { return &answering{answer: answer}, nil })
		if err != nil {
			return
		}
		now := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
		d, err := Decide([]Sample{s}, View{Now: now, Floor: now})
		if to := now.Add(d.Offset); err == nil && (to.Before(now) || to.After(now.Add(FirstWindow))) {
			t.Errorf("the clock would be set to %s", to)
		}
		d, err = Decide([]Sample{s}, View{Now: now, Floor: now.Add(-time.Hour), Synced: true, Since: time.Hour})
		if err == nil && (d.Move != Slew || d.Offset.Abs() > maxSlew) {
			t.Errorf("a synchronised clock would %v by %v", d.Move, d.Offset)
		}
	})
}
