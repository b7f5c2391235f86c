package apid

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// What one client, and all together, may ask for.
const (
	maxMessage       = 4 << 20          // bytes of one message, in either direction
	maxStreams       = 100              // calls at once on one connection
	maxHeader        = 16 << 10         // bytes of a call's headers
	maxPerAddress    = 32               // connections at once from one address
	maxConnections   = 256              // connections at once in all
	handshakeTimeout = 10 * time.Second // from the first byte to the end of TLS and HTTP/2 set-up
	lingerTime       = time.Second      // how long a refused client may take to read why …
	lingerBytes      = 64 << 10         // … and how much it may send meanwhile
	keepaliveMin     = 2 * time.Second  // a client that pings more often is disconnected; ours pings every 20 s, by a clock that may be eight times faster (docs/decisions/0042)
	keepaliveTime    = 30 * time.Second // apid pings a silent connection …
	keepaliveTimeout = 20 * time.Second // … and closes it when no answer comes
	maxIdle          = 15 * time.Minute // a connection without calls is closed
	transportBuffer  = 4 << 10          // bytes of read and write buffer of a connection; small, for memory
)

// How fast one address may begin connections. The kernel is told, too (machined).
const (
	NewPerAddress = 10 // connections a second, in the long run …
	NewAtOnce     = 50 // … and as many at once after a pause
)

// limitListener refuses connections above a number in all, and above a number and a rate from one address, by closing them at once:
// that costs a hundredth of a handshake, which a stranger can ask for, too.
type limitListener struct {
	net.Listener
	perAddress, total int
	every             rate.Limit // connections a second from one address
	burst             int

	mu        sync.Mutex
	addresses map[netip.Addr]*address
	sum       int       // connections
	swept     time.Time // when addresses were last looked through for those that can be forgotten
}

// address is one that has a connection, or had one not long ago.
type address struct {
	open int
	pace *rate.Limiter
}

func newLimitListener(l net.Listener, perAddress, total int, every rate.Limit, burst int) *limitListener {
	return &limitListener{Listener: l, perAddress: perAddress, total: total, every: every, burst: burst, addresses: map[netip.Addr]*address{}}
}

// Accept implements net.Listener.
func (l *limitListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		addr := remoteAddr(conn)
		if l.take(addr, time.Now()) {
			return &limitedConn{Conn: conn, release: sync.OnceFunc(func() { l.give(addr) })}, nil
		}
		// Closing is the whole answer; there is nobody to tell that it failed.
		_ = conn.Close()
	}
}

func (l *limitListener) take(addr netip.Addr, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweepLocked(now)
	a, known := l.addresses[addr]
	if !known {
		a = &address{pace: rate.NewLimiter(l.every, l.burst)}
		l.addresses[addr] = a
	}
	if l.sum >= l.total || a.open >= l.perAddress || !a.pace.AllowN(now, 1) {
		return false
	}
	l.sum++
	a.open++
	return true
}

func (l *limitListener) give(addr netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sum--
	l.addresses[addr].open--
}

// sweepLocked forgets, from time to time, the addresses that would be new ones again.
func (l *limitListener) sweepLocked(now time.Time) {
	if now.Sub(l.swept) < time.Minute {
		return
	}
	l.swept = now
	for addr, a := range l.addresses {
		if a.open == 0 && a.pace.TokensAt(now) >= float64(l.burst) {
			delete(l.addresses, addr)
		}
	}
}

// remoteAddr is the peer's address without port and zone. An IPv6 client owns a whole /64, so that is what counts.
func remoteAddr(conn net.Conn) netip.Addr {
	tcp, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	addr := tcp.AddrPort().Addr().Unmap().WithZone("")
	if addr.Is6() {
		if prefix, err := addr.Prefix(64); err == nil {
			return prefix.Addr()
		}
	}
	return addr
}

type limitedConn struct {
	net.Conn
	release func()
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}

// CloseWrite ends the sending half of the connection.
func (c *limitedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.New("connection: cannot close its sending half: it is not TCP")
}
