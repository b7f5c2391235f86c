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

// responder is an NTP server on loopback whose clock is off by a given time.
type responder struct {
	address string
	asked   atomic.Int32
	off     atomic.Int64 // nanoseconds
	silent  atomic.Bool
}

func newResponder(t *testing.T, off time.Duration) *responder {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &responder{address: c.LocalAddr().String()}
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
			_, _ = c.WriteTo(reply(buf[:48], time.Duration(r.off.Load())), peer)
		}
	}()
	t.Cleanup(func() {
		c.Close()
		<-done
	})
	return r
}

// reply answers an NTPv4 request (RFC 5905 section 7.3).
func reply(request []byte, off time.Duration) []byte {
	out := make([]byte, 48)
	out[0] = 4<<3 | 4 // version 4, mode server
	out[1] = 1        // stratum
	out[3] = 0xec     // precision 2^-20 s
	copy(out[12:16], "TEST")
	now := stamp(time.Now().Add(off))
	binary.BigEndian.PutUint64(out[16:], stamp(time.Now().Add(off-time.Second))) // reference
	copy(out[24:32], request[40:48])                                             // origin: what the client sent
	binary.BigEndian.PutUint64(out[32:], now)                                    // receive
	binary.BigEndian.PutUint64(out[40:], now)                                    // transmit
	return out
}

// stamp is an NTP timestamp: seconds since 1900, and their fraction of 2^32.
func stamp(t time.Time) uint64 {
	const from1900 = 2208988800
	return uint64(t.Unix()+from1900)<<32 | uint64(t.Nanosecond())<<32/1e9
}

// bench is a Syncer with a clock that only writes down.
type bench struct {
	servers *cell.Cell[[]string]
	status  *cell.Cell[Status]
	mu      sync.Mutex
	moves   []string
}

func newBench(t *testing.T, servers ...string) *bench {
	t.Helper()
	b := &bench{servers: cell.New(servers), status: cell.New(Status{})}
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
			Servers: b.servers, Status: b.status, Log: func(string) {},
			Clock: Clock{Now: time.Now, Step: note("step"), Slew: note("slew")}, Floor: time.Now().Add(-24 * time.Hour),
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
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	st, err := cell.Wait(ctx, b.status, ok)
	if err != nil {
		t.Fatalf("not %s: %+v", what, st)
	}
	return st
}

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
	r.off.Store(0) // the server is put right: it is asked again within seconds
	b.wait(t, "synchronised", func(s Status) bool { return s.Synced })
}

// TestNobodyIsAsked has no server, then one, then none again: no packet leaves without a server.
func TestNobodyIsAsked(t *testing.T) {
	r := newResponder(t, 0)
	b := newBench(t)
	b.servers.Set([]string{r.address})
	b.wait(t, "synchronised", func(s Status) bool { return s.Synced })
	b.servers.Set([]string{r.address}) // the same list: nothing to do
	b.servers.Set(nil)
	b.wait(t, "idle", func(s Status) bool { return len(s.Servers) == 0 && !s.Synced })
	if n := r.asked.Load(); n != 1 {
		t.Errorf("the server was asked %d times, want once", n)
	}
}

// TestSilentServer does not let a server that does not answer hold up the next list.
func TestSilentServer(t *testing.T) {
	mute, good := newResponder(t, 0), newResponder(t, 0)
	mute.silent.Store(true)
	b := newBench(t, mute.address)
	start := time.Now()
	b.servers.Set([]string{good.address})
	b.wait(t, "synchronised", func(s Status) bool { return s.Synced && s.Server == good.address })
	if d := time.Since(start); d > askTimeout/2 {
		t.Errorf("the next list waited %v", d)
	}
}

// answering is a connection to a server that answers whatever it is asked with the same bytes. The originate timestamp is put right if
// it knows the question: without it an answer is thrown away before anything else in it is looked at.
type answering struct {
	net.Conn // the methods that are not needed
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

// FuzzAnswer: what anybody sends as a time server's answer is refused, or leads to a time that is not before the build.
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
		d, err := Decide([]Sample{s}, now, now)
		if err == nil && now.Add(d.Offset).Before(now) {
			t.Errorf("the clock would go to %s", now.Add(d.Offset))
		}
	})
}
