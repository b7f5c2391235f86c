package apid

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"
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
	keepaliveMin     = 10 * time.Second // a client that pings more often is disconnected
	keepaliveTime    = 30 * time.Second // apid pings a silent connection …
	keepaliveTimeout = 20 * time.Second // … and closes it when no answer comes
	maxIdle          = 15 * time.Minute // a connection without calls is closed
	transportBuffer  = 4 << 10          // bytes of read and write buffer of a connection; small, for memory
)

// limitListener refuses connections above a number in all and from one address by closing them at once.
type limitListener struct {
	net.Listener
	perAddress, total int

	mu   sync.Mutex
	open map[netip.Addr]int
	sum  int
}

func newLimitListener(l net.Listener, perAddress, total int) *limitListener {
	return &limitListener{Listener: l, perAddress: perAddress, total: total, open: map[netip.Addr]int{}}
}

// Accept implements net.Listener.
func (l *limitListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		addr := remoteAddr(conn)
		if l.take(addr) {
			return &limitedConn{Conn: conn, release: sync.OnceFunc(func() { l.give(addr) })}, nil
		}
		// Closing is the whole answer; there is nobody to tell that it failed.
		_ = conn.Close()
	}
}

func (l *limitListener) take(addr netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sum >= l.total || l.open[addr] >= l.perAddress {
		return false
	}
	l.sum++
	l.open[addr]++
	return true
}

func (l *limitListener) give(addr netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sum--
	if l.open[addr]--; l.open[addr] == 0 {
		delete(l.open, addr)
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
