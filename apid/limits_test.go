package apid

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/time/rate"
)

func TestConnectionLimits(t *testing.T) {
	l := newLimitListener(nil, 2, [2]int{3, 1}, 8, 1, 4)
	now := time.Now()
	one, two, three := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.3")
	var all []*limitedConn
	for i, c := range []struct {
		addr   netip.Addr
		taken  bool
		proved bool
	}{{one, true, true}, {one, true, true}, {one, false, false}, {two, true, true}, {two, true, false}, {three, true, false}} {
		conn := &limitedConn{list: l, addr: c.addr}
		taken, oldest := l.take(conn, now)
		if taken != c.taken || oldest != nil {
			t.Fatalf("step %d: taken: %v, in the place of %v", i, taken, oldest)
		}
		if taken {
			all = append(all, conn)
		}
		if err := conn.prove(callerKind, "", nil); taken && (err == nil) != c.proved {
			t.Errorf("step %d: %v", i, err)
		}
	}
	// Machines of the cluster have places of their own.
	if err := all[4].prove(machineKind, "", nil); err != nil {
		t.Errorf("callers have taken a machine's place: %v", err)
	}
	machine := &limitedConn{list: l, addr: netip.MustParseAddr("192.0.2.4")}
	l.take(machine, now)
	if err := machine.prove(machineKind, "", nil); err == nil {
		t.Error("more machines than there are places")
	}
	l.give(machine)
	l.give(all[4])
	all = slices.Delete(all, 4, 5)
	l.give(all[0])
	if err := all[3].prove(callerKind, "", nil); err != nil {
		t.Errorf("a place that was given back is not taken: %v", err)
	}
	for _, c := range all[1:] {
		l.give(c)
	}
	if l.sum != [2]int{} || len(l.waiting) != 0 {
		t.Errorf("%v and %d are counted, and all have gone", l.sum, len(l.waiting))
	}
}

// TestConnectionsOfOne: one certificate does not take all places, from however many addresses it
// comes.
func TestConnectionsOfOne(t *testing.T) {
	l := newLimitListener(nil, 1, [2]int{2 * maxOfOne, 1}, 8, 1, 4)
	forgotten := 0
	var all []*limitedConn
	for i := range maxOfOne + 1 {
		conn := &limitedConn{list: l, addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})}
		l.take(conn, time.Now())
		if err := conn.prove(callerKind, "1a", func() { forgotten++ }); (err == nil) != (i < maxOfOne) {
			t.Fatalf("connection %d: %v", i, err)
		}
		all = append(all, conn)
	}
	other := &limitedConn{list: l, addr: netip.MustParseAddr("198.51.100.1")}
	l.take(other, time.Now())
	if err := other.prove(callerKind, "2b", func() {}); err != nil {
		t.Errorf("another certificate: %v", err)
	}
	for _, c := range append(all, other) {
		l.give(c)
	}
	if forgotten != maxOfOne || len(l.holders) > 0 {
		t.Errorf("%d are forgotten, want %d; %v are counted", forgotten, maxOfOne, l.holders)
	}
}

// TestSilentMakeRoom: those who connect and show no certificate take no place from those who do;
// the oldest goes when one more comes.
func TestSilentMakeRoom(t *testing.T) {
	l := newLimitListener(nil, 8, [2]int{2, 2}, 3, 1, 8)
	now, addr := time.Now(), netip.MustParseAddr("192.0.2.1")
	come := func() (conn, oldest *limitedConn) {
		conn = &limitedConn{list: l, addr: addr}
		taken, oldest := l.take(conn, now)
		if !taken {
			t.Fatal("a connection was refused")
		}
		return conn, oldest
	}
	proved, _ := come()
	if err := proved.prove(callerKind, "", nil); err != nil {
		t.Fatal(err)
	}
	first, _ := come()
	come()
	come()
	_, oldest := come()
	if oldest != first {
		t.Errorf("%v made room, not the oldest", oldest)
	}
	l.give(first)
	if err := first.prove(callerKind, "", nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("one that made room: %v", err)
	}
}

// TestFairShare: those who have the most connections without a certificate make room, and nobody
// else, whatever he does in what network.
func TestFairShare(t *testing.T) {
	const places = 12
	attackers := []string{"192.0.2.66", "192.0.2.67", "198.51.100.1", "203.0.113.1"}
	for name, c := range map[string]struct{ honest, attackers []string }{
		"another network": {[]string{"10.0.0.1"}, attackers},
		"their network":   {[]string{"192.0.2.1"}, attackers},
		"two of them":     {[]string{"192.0.2.1", "10.0.0.1"}, attackers},
		"one attacker":    {[]string{"192.0.2.1", "10.0.0.1"}, attackers[:1]},
		"IPv6, many of a site's networks": {[]string{"2001:db8:1::1", "2001:db8:2:ffff::1", "10.0.0.1"},
			[]string{"2001:db8:2:1::1", "2001:db8:2:2::1", "2001:db8:2:3::1", "2001:db8:2:4::1", "2001:db8:2:5::1", "2001:db8:2:6::1"}},
	} {
		l := newLimitListener(nil, places, [2]int{8, 8}, places, rate.Inf, 1)
		now := time.Now()
		come := func(addr string) *limitedConn {
			conn := &limitedConn{list: l, addr: netip.MustParseAddr(addr)}
			taken, out := l.take(conn, now)
			if !taken {
				t.Fatalf("%s: %s is refused", name, addr)
			}
			if out != nil {
				l.give(out)
			}
			return conn
		}
		var honest []*limitedConn
		for _, addr := range c.honest {
			honest = append(honest, come(addr))
		}
		for n := range 20 * places { // one after the other, for as long as they like
			come(c.attackers[n%len(c.attackers)])
			if n%places == 0 {
				k := n / places % len(honest) // one tries again
				l.give(honest[k])
				honest[k] = come(c.honest[k])
			}
			if len(l.waiting) > places {
				t.Fatalf("%s: %d places are taken", name, len(l.waiting))
			}
		}
		for _, conn := range honest {
			if err := conn.prove(callerKind, "1a", nil); err != nil {
				t.Errorf("%s: %v made room for others", name, conn.addr)
			}
		}
	}
}

// TestSilenceEnds: a connection over which nothing comes is closed, and one over which something
// has come is not.
func TestSilenceEnds(t *testing.T) {
	for _, speaks := range []bool{false, true} {
		here, there := net.Pipe()
		l := newLimitListener(nil, 8, [2]int{2, 2}, 3, 1, 8)
		conn := &limitedConn{Conn: there, list: l, addr: netip.MustParseAddr("192.0.2.1"), left: maxHandshake}
		conn.release = sync.OnceFunc(func() { l.give(conn) })
		if taken, _ := l.take(conn, time.Now()); !taken {
			t.Fatal("a connection was refused")
		}
		if speaks {
			go func() { _, _ = here.Write([]byte("x")) }()
			if _, err := conn.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
		conn.listen(time.Millisecond)
		patience := 20 * time.Second // until it is closed
		if speaks {
			patience = 50 * time.Millisecond // in which it is not
		}
		if err := here.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := here.Read(make([]byte, 1)); errors.Is(err, io.EOF) == speaks {
			t.Errorf("it has spoken: %t; %v", speaks, err)
		}
		l.mu.Lock()
		open := len(l.waiting) == 1
		l.mu.Unlock()
		if open != speaks {
			t.Errorf("it has spoken: %t; its place is taken: %t", speaks, open)
		}
		_ = conn.Close()
		here.Close()
	}
}

// TestHandshakeIsShort: a client cannot have much held before it has shown a certificate.
func TestHandshakeIsShort(t *testing.T) {
	here, there := net.Pipe()
	defer here.Close()
	go func() {
		defer there.Close()
		_, _ = there.Write(make([]byte, maxHandshake+1)) // it ends when here is closed
	}()
	conn := &limitedConn{Conn: here, list: newLimitListener(nil, 8, [2]int{8, 8}, 8, 1, 8), left: maxHandshake}
	n, err := io.Copy(io.Discard, conn)
	if n != maxHandshake || !errors.Is(err, errTooLong) {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// TestCallsOfOne: one certificate can make so many calls at once, and takes none from others.
func TestCallsOfOne(t *testing.T) {
	c := callers{now: map[string]int{}}
	var leave []func()
	for range 3 {
		done, err := c.enter("a", 3)
		if err != nil {
			t.Fatal(err)
		}
		leave = append(leave, done)
	}
	if _, err := c.enter("a", 3); err == nil || !strings.Contains(err.Error(), "3 calls of yours go on") {
		t.Errorf("a fourth: %v", err)
	}
	other, err := c.enter("b", 3)
	if err != nil {
		t.Error(err)
	}
	leave[0]()
	again, err := c.enter("a", 3)
	if err != nil {
		t.Errorf("after one has ended: %v", err)
	}
	for _, done := range append(leave[1:], other, again) {
		done()
	}
	if len(c.now) != 0 {
		t.Errorf("%v are counted, and none go on", c.now)
	}
}

// TestConnectionPace: an address that comes too often is refused until time has passed, another one
// is not, and who has gone is forgotten.
func TestConnectionPace(t *testing.T) {
	l := newLimitListener(nil, 2, [2]int{3, 1}, 8, 1, 4)
	now := time.Now()
	one, two := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	comes := func(addr netip.Addr, after time.Duration) bool {
		now = now.Add(after)
		c := &limitedConn{list: l, addr: addr}
		came, _ := l.take(c, now)
		if came {
			l.give(c)
		}
		return came
	}
	for i := range 4 {
		if !comes(one, 0) {
			t.Errorf("time %d was refused", i)
		}
	}
	if comes(one, 0) || !comes(two, 0) {
		t.Error("the wrong one was refused")
	}
	if comes(one, time.Second/2) || !comes(one, time.Second) || comes(one, 0) {
		t.Error("a second is good for one connection")
	}
	if !comes(two, 2*time.Minute) || len(l.addresses) != 1 {
		t.Errorf("%d addresses are remembered", len(l.addresses))
	}
}
