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

// TestConnectionLimits checks the limits of connections: 2 of an address, 3 of users with a
// certificate, and 1 of machines of the cluster.
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
		conn := &limitedConn{listener: l, addr: c.addr}
		taken, oldest := l.add(conn, now)
		if taken != c.taken || oldest != nil {
			t.Fatalf("step %d: accepted %t, closes the connection %v to make room", i, taken, oldest)
		}
		if taken {
			all = append(all, conn)
		}
		if err := conn.authenticate(userKind, "", nil); taken && (err == nil) != c.proved {
			t.Errorf("step %d: %v", i, err)
		}
	}
	// The machines of the cluster have a separate limit.
	if err := all[4].authenticate(machineKind, "", nil); err != nil {
		t.Errorf("a machine is rejected, although only connections of users are open: %v", err)
	}
	machine := &limitedConn{listener: l, addr: netip.MustParseAddr("192.0.2.4")}
	l.add(machine, now)
	if err := machine.authenticate(machineKind, "", nil); err == nil {
		t.Error("a machine beyond the limit for machines is accepted")
	}
	l.remove(machine)
	l.remove(all[4])
	all = slices.Delete(all, 4, 5)
	l.remove(all[0])
	if err := all[3].authenticate(userKind, "", nil); err != nil {
		t.Errorf("a user is rejected, although a connection was removed: %v", err)
	}
	for _, c := range all[1:] {
		l.remove(c)
	}
	if l.openByKind != [2]int{} || len(l.waiting) != 0 {
		t.Errorf("%v open and %d unauthenticated connections are counted, want none", l.openByKind, len(l.waiting))
	}
}

// TestConnectionsPerHolder checks that one certificate holder cannot use up all connections, even
// from many addresses.
func TestConnectionsPerHolder(t *testing.T) {
	l := newLimitListener(nil, 1, [2]int{2 * maxPerHolder, 1}, 8, 1, 4)
	forgotten := 0
	var all []*limitedConn
	for i := range maxPerHolder + 1 {
		conn := &limitedConn{listener: l, addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})}
		l.add(conn, time.Now())
		if err := conn.authenticate(userKind, "1a", func() { forgotten++ }); (err == nil) != (i < maxPerHolder) {
			t.Fatalf("connection %d: %v", i, err)
		}
		all = append(all, conn)
	}
	other := &limitedConn{listener: l, addr: netip.MustParseAddr("198.51.100.1")}
	l.add(other, time.Now())
	if err := other.authenticate(userKind, "2b", func() {}); err != nil {
		t.Errorf("another certificate: %v", err)
	}
	for _, c := range append(all, other) {
		l.remove(c)
	}
	if forgotten != maxPerHolder || len(l.holders) > 0 {
		t.Errorf("forget was called %d times, want %d; still counted: %v", forgotten, maxPerHolder, l.holders)
	}
}

// TestUnauthenticatedMakeRoom checks that, beyond the limit of connections without a certificate,
// the oldest of these connections is closed. Connections with a certificate stay open.
func TestUnauthenticatedMakeRoom(t *testing.T) {
	l := newLimitListener(nil, 8, [2]int{2, 2}, 3, 1, 8)
	now, addr := time.Now(), netip.MustParseAddr("192.0.2.1")
	come := func() (conn, oldest *limitedConn) {
		conn = &limitedConn{listener: l, addr: addr}
		taken, oldest := l.add(conn, now)
		if !taken {
			t.Fatal("a connection was refused")
		}
		return conn, oldest
	}
	proved, _ := come()
	if err := proved.authenticate(userKind, "", nil); err != nil {
		t.Fatal(err)
	}
	first, _ := come()
	come()
	come()
	_, oldest := come()
	if oldest != first {
		t.Errorf("%v was closed, not the oldest connection", oldest)
	}
	l.remove(first)
	if err := first.authenticate(userKind, "", nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("authentication of a connection that was closed to make room: got %v, want ErrClosed", err)
	}
}

// TestFairShare checks that, beyond the limit, only the addresses with the most connections without
// a certificate lose connections. Other clients keep their connections, also if they share a
// network with these addresses.
func TestFairShare(t *testing.T) {
	const places = 12
	attackers := []string{"192.0.2.66", "192.0.2.67", "198.51.100.1", "203.0.113.1"}
	for name, c := range map[string]struct{ honest, attackers []string }{
		"a client in another network":            {[]string{"10.0.0.1"}, attackers},
		"a client in a network of the attackers": {[]string{"192.0.2.1"}, attackers},
		"two clients":                            {[]string{"192.0.2.1", "10.0.0.1"}, attackers},
		"two clients, one attacker":              {[]string{"192.0.2.1", "10.0.0.1"}, attackers[:1]},
		"IPv6, and the attackers use many networks of a site": {[]string{"2001:db8:1::1", "2001:db8:2:ffff::1", "10.0.0.1"},
			[]string{"2001:db8:2:1::1", "2001:db8:2:2::1", "2001:db8:2:3::1", "2001:db8:2:4::1", "2001:db8:2:5::1", "2001:db8:2:6::1"}},
	} {
		l := newLimitListener(nil, places, [2]int{8, 8}, places, rate.Inf, 1)
		now := time.Now()
		come := func(addr string) *limitedConn {
			conn := &limitedConn{listener: l, addr: netip.MustParseAddr(addr)}
			taken, out := l.add(conn, now)
			if !taken {
				t.Fatalf("%s: %s is refused", name, addr)
			}
			if out != nil {
				l.remove(out)
			}
			return conn
		}
		var honest []*limitedConn
		for _, addr := range c.honest {
			honest = append(honest, come(addr))
		}
		for n := range 20 * places { // the attackers connect in turn
			come(c.attackers[n%len(c.attackers)])
			if n%places == 0 {
				k := n / places % len(honest) // an honest client reconnects
				l.remove(honest[k])
				honest[k] = come(c.honest[k])
			}
			if len(l.waiting) > places {
				t.Fatalf("%s: %d connections without a certificate, more than the limit", name, len(l.waiting))
			}
		}
		for _, conn := range honest {
			if err := conn.authenticate(userKind, "1a", nil); err != nil {
				t.Errorf("%s: the connection of the client %v was closed to make room", name, conn.addr)
			}
		}
	}
}

// TestSilentConnectionsClose checks that a connection is closed if no data arrives, and stays open
// if data arrives.
func TestSilentConnectionsClose(t *testing.T) {
	for _, speaks := range []bool{false, true} {
		here, there := net.Pipe()
		l := newLimitListener(nil, 8, [2]int{2, 2}, 3, 1, 8)
		conn := &limitedConn{Conn: there, listener: l, addr: netip.MustParseAddr("192.0.2.1"), left: maxHandshake}
		released := make(chan struct{})
		conn.release = sync.OnceFunc(func() { l.remove(conn); close(released) })
		if taken, _ := l.add(conn, time.Now()); !taken {
			t.Fatal("a connection was refused")
		}
		if speaks {
			go func() { _, _ = here.Write([]byte("x")) }()
			if _, err := conn.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
		patience := 20 * time.Second // longest time until the connection is closed
		if speaks {
			patience = 50 * time.Millisecond // time in which the connection must stay open
		}
		if err := here.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		conn.closeIfSilent(time.Millisecond)
		if _, err := here.Read(make([]byte, 1)); errors.Is(err, io.EOF) == speaks {
			t.Errorf("data sent: %t; error %v", speaks, err)
		}
		if !speaks { // the count is decremented after the close
			select {
			case <-released:
			case <-time.After(patience):
			}
		}
		l.mu.Lock()
		open := len(l.waiting) == 1
		l.mu.Unlock()
		if open != speaks {
			t.Errorf("data sent: %t; still counted: %t", speaks, open)
		}
		_ = conn.Close()
		here.Close()
	}
}

// TestHandshakeDataLimit checks the limit of data from a client that has not shown a certificate.
func TestHandshakeDataLimit(t *testing.T) {
	here, there := net.Pipe()
	defer here.Close()
	go func() {
		defer there.Close()
		_, _ = there.Write(make([]byte, maxHandshake+1)) // returns when the other end is closed
	}()
	conn := &limitedConn{Conn: here, listener: newLimitListener(nil, 8, [2]int{8, 8}, 8, 1, 8), left: maxHandshake}
	n, err := io.Copy(io.Discard, conn)
	if n != maxHandshake || !errors.Is(err, errTooLong) {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// TestCallsPerHolder checks the limit of concurrent calls per certificate holder. Other holders are
// not affected.
func TestCallsPerHolder(t *testing.T) {
	c := callers{active: map[string]int{}}
	var leave []func()
	for range 3 {
		done, err := c.acquire("a", 3)
		if err != nil {
			t.Fatal(err)
		}
		leave = append(leave, done)
	}
	if _, err := c.acquire("a", 3); err == nil || !strings.Contains(err.Error(), "you have 3 active calls") {
		t.Errorf("a fourth call, with a limit of 3: %v", err)
	}
	other, err := c.acquire("b", 3)
	if err != nil {
		t.Error(err)
	}
	leave[0]()
	again, err := c.acquire("a", 3)
	if err != nil {
		t.Errorf("after a call has ended: %v", err)
	}
	for _, done := range append(leave[1:], other, again) {
		done()
	}
	if len(c.active) != 0 {
		t.Errorf("%v are counted, but no call is active", c.active)
	}
}

// TestConnectionRate checks that an address that connects too often is rejected for some time, that
// another address is accepted, and that unused addresses are removed.
func TestConnectionRate(t *testing.T) {
	l := newLimitListener(nil, 2, [2]int{3, 1}, 8, 1, 4)
	now := time.Now()
	one, two := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	comes := func(addr netip.Addr, after time.Duration) bool {
		now = now.Add(after)
		c := &limitedConn{listener: l, addr: addr}
		came, _ := l.add(c, now)
		if came {
			l.remove(c)
		}
		return came
	}
	for i := range 4 {
		if !comes(one, 0) {
			t.Errorf("connection %d was rejected", i)
		}
	}
	if comes(one, 0) || !comes(two, 0) {
		t.Error("after four connections, the first address was accepted, or the second address was rejected")
	}
	if comes(one, time.Second/2) || !comes(one, time.Second) || comes(one, 0) {
		t.Error("an exhausted address must get exactly one connection per second")
	}
	if !comes(two, 2*time.Minute) || len(l.addresses) != 1 {
		t.Errorf("%d addresses are stored, want only the address in use", len(l.addresses))
	}
}
