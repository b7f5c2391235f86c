package apid

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// Limits per client and for all clients.
const (
	// bytes of a message from a client: a piece of an archive, or the documents, have at most 1 MiB
	maxRequest = 1<<20 + 64<<10
	maxAnswer  = 4 << 20 // bytes of a message to a client
	maxStreams = 100     // concurrent calls per connection
	// concurrent calls per certificate holder (pki.HolderID) with another role than operator or
	// admin …
	maxCalls = 32
	// … and per operator or admin, which may call many machines through this machine
	maxCallsOperator = 128
	maxHeader        = 16 << 10 // bytes of a call's headers
	maxPerAddress    = 32       // concurrent connections per address …
	maxPerHolder     = 32       // … and per holder
	// flow-control window of a call: bytes that a peer may send before apid has read them, in
	// addition to the message that apid is reading; without this limit gRPC enlarges the window up
	// to 16 MiB
	streamWindow = 256 << 10
	// flow-control window of a connection: bytes of all its calls that are on the way. It can be
	// small, because gRPC reads them at once
	connWindow = 1 << 20
	// concurrent connections of clients with a certificate that are not machines of the cluster
	maxConnections = 256
	// concurrent connections of machines of the cluster: each machine keeps a connection to each
	// control-plane machine (machined/membership/sync.go)
	maxMachines = 1024
	// concurrent connections without a certificate yet; beyond the limit, the client with the most
	// of these connections loses a connection (victimLocked)
	maxUnauthenticated = 128
	silentTimeout      = 3 * time.Second // until the first byte of a connection
	// bytes that a client may send before it has shown a certificate
	maxHandshake     = 32 << 10
	handshakeTimeout = 10 * time.Second // from the first byte to the end of TLS and HTTP/2 set-up
	lingerTime       = time.Second      // time in which a rejected client may read the reason …
	lingerBytes      = 64 << 10         // … and bytes that it may send meanwhile
	// grace period for connections of a revoked client, so that its next call gets the error; a
	// removed machine calls every 4 seconds (machined/membership/sync.go)
	revokedGracePeriod = 10 * time.Second
	// a client that pings more often is disconnected; our clients ping every 20 s, but in tests the
	// clock of a client can run eight times faster than the clock of the machine
	// (docs/decisions/0042)
	keepaliveMin     = 2 * time.Second
	keepaliveTime    = 30 * time.Second // apid pings a silent connection …
	keepaliveTimeout = 20 * time.Second // … and closes it if no answer arrives in this time
	maxIdle          = 15 * time.Minute // a connection without calls is closed
	// bytes of the read buffer and of the write buffer of a connection; small, to save memory
	transportBuffer = 4 << 10
)

// Rate limit for new connections per address. machined also sets it in the kernel.
const (
	ConnectionsPerAddress = 10 // connections per second, long-term …
	ConnectionBurst       = 50 // … and in a burst
)

// limitListener limits the number of connections, and the number and rate per address. It closes
// excess connections before the TLS handshake, because every client, also without a certificate,
// can request handshakes, and a close costs a hundredth of a handshake.
//
// Connections without a certificate yet have a separate limit, so that clients that only connect do
// not block clients with certificates. If they exceed this limit, the client with the most
// connections loses a connection (victimLocked). A client with fewer connections keeps them until
// it shows a certificate or times out.
type limitListener struct {
	net.Listener
	perAddress int
	maxByKind  [2]int // limits of connections with a certificate, by kind
	maxWaiting int    // limit of connections without a certificate
	silent     time.Duration
	rate       rate.Limit // connections per second from an address, long-term …
	burst      int        // … and in a burst

	mu         sync.Mutex
	addresses  map[netip.Addr]*address
	openByKind [2]int         // open connections with a certificate, by kind …
	holders    map[string]int // … and by the certificate's holder
	waiting    []*limitedConn // connections without a certificate, the oldest first
	// time of the last sweep of addresses
	swept time.Time
}

// The kinds of clients with a certificate: machines of the cluster, and all other callers. Each
// kind has its own limit: the number of machines in a cluster cannot block its operators.
const (
	userKind = iota
	machineKind
)

// address is an address with a current or recent connection.
type address struct {
	open    int
	limiter *rate.Limiter
}

// newLimitListener returns a limitListener. maxByKind contains the limits of connections with a
// certificate, by kind; maxWaiting is the limit of connections without a certificate.
func newLimitListener(l net.Listener, perAddress int, maxByKind [2]int, maxWaiting int, perSecond rate.Limit, burst int) *limitListener {
	return &limitListener{Listener: l, perAddress: perAddress, maxByKind: maxByKind, maxWaiting: maxWaiting, silent: silentTimeout, rate: perSecond, burst: burst, addresses: map[netip.Addr]*address{}, holders: map[string]int{}}
}

// Accept implements net.Listener.
func (l *limitListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &limitedConn{Conn: conn, listener: l, addr: remoteAddr(conn), left: maxHandshake, since: time.Now()}
		c.release = sync.OnceFunc(func() { l.remove(c) })
		taken, out := l.add(c, time.Now())
		if out != nil {
			_ = out.Close()
		}
		if taken {
			c.closeIfSilent(l.silent)
			return c, nil
		}
		// The client gets only the end of the connection as an answer, and no caller needs the
		// error.
		_ = conn.Close()
	}
}

// add counts a new connection and reports whether the limits of its address permit it. out is the
// connection to close if there are too many connections without a certificate then, else nil.
func (l *limitListener) add(c *limitedConn, now time.Time) (taken bool, out *limitedConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweepLocked(now)
	a, known := l.addresses[c.addr]
	if !known {
		a = &address{limiter: rate.NewLimiter(l.rate, l.burst)}
		l.addresses[c.addr] = a
	}
	if a.open >= l.perAddress || !a.limiter.AllowN(now, 1) {
		return false, nil
	}
	l.waiting = append(l.waiting, c)
	a.open++
	if len(l.waiting) > l.maxWaiting {
		out = l.victimLocked()
	}
	return true, out
}

// victimLocked returns the connection to close among the connections without a certificate. It
// selects the network with the most of these connections, then the address with the most in this
// network, then the oldest connection of this address. If several networks or addresses have the
// same number, the oldest connection decides. So the few addresses of one network that together
// use up the limit displace only each other's connections. They displace no client of another
// network, and no other client of their own network.
func (l *limitListener) victimLocked() *limitedConn {
	networks, addresses := map[netip.Prefix]int{}, map[netip.Addr]int{}
	for _, c := range l.waiting {
		networks[networkOf(c.addr)]++
		addresses[c.addr]++
	}
	out := l.waiting[0]
	// oldest first: with equal numbers, the older connection stays selected
	for _, c := range l.waiting[1:] {
		n, most := networks[networkOf(c.addr)], networks[networkOf(out.addr)]
		if n > most || networkOf(c.addr) == networkOf(out.addr) && addresses[c.addr] > addresses[out.addr] {
			out = c
		}
	}
	return out
}

// networkOf returns the network that likely belongs to the owner of an address: an IPv4 /24 or an
// IPv6 /48. addr comes from remoteAddr, so an IPv6 address stands for its /64.
func networkOf(addr netip.Addr) netip.Prefix {
	bits := 24
	if addr.Is6() {
		bits = 48
	}
	network, err := addr.Prefix(bits)
	if err != nil { // not an address
		return netip.Prefix{}
	}
	return network
}

// authenticate counts a connection as a connection with a certificate. forget is called when the
// connection is closed. authenticate fails if there are too many connections, of this kind or of
// this holder.
func (l *limitListener) authenticate(c *limitedConn, kind int, holder string, forget func()) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := slices.Index(l.waiting, c)
	if at < 0 {
		return net.ErrClosed // add has closed it in favor of another connection
	}
	if l.openByKind[kind] >= l.maxByKind[kind] {
		return fmt.Errorf("%d connections are open, which is the limit", l.openByKind[kind])
	}
	if l.holders[holder] >= maxPerHolder {
		return fmt.Errorf("%d connections with certificates of this holder are open, which is the limit", maxPerHolder)
	}
	l.waiting = slices.Delete(l.waiting, at, at+1)
	l.openByKind[kind]++
	l.holders[holder]++
	c.kind, c.holder, c.forget = kind, holder, forget
	return nil
}

func (l *limitListener) remove(c *limitedConn) {
	defer func() {
		if c.forget != nil {
			c.forget()
		}
	}()
	l.mu.Lock()
	defer l.mu.Unlock()
	if at := slices.Index(l.waiting, c); at >= 0 {
		l.waiting = slices.Delete(l.waiting, at, at+1)
	} else {
		l.openByKind[c.kind]--
		if l.holders[c.holder]--; l.holders[c.holder] == 0 {
			delete(l.holders, c.holder)
		}
	}
	l.addresses[c.addr].open--
}

// sweepLocked removes, once a minute at most, the addresses without a connection and with a full
// rate limiter.
func (l *limitListener) sweepLocked(now time.Time) {
	if now.Sub(l.swept) < time.Minute {
		return
	}
	l.swept = now
	for addr, a := range l.addresses {
		if a.open == 0 && a.limiter.TokensAt(now) >= float64(l.burst) {
			delete(l.addresses, addr)
		}
	}
}

// remoteAddr returns the peer's address without port and zone. An IPv6 client has a whole /64, so
// the /64 counts as its address.
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
	listener      *limitListener
	addr          netip.Addr
	release       func()
	kind          int    // kind, set by authenticate …
	holder        string // … and holder of the certificate
	left          int    // bytes that the client may still send without a certificate
	authenticated bool   // set in the handshake, before another goroutine reads from the connection
	received      atomic.Bool
	forget        func() // set by authenticate: called when the connection is closed
	since         time.Time
}

// RemoteAddr implements net.Conn. gRPC passes the address to every call, so the address also
// contains the age of the connection.
func (c *limitedConn) RemoteAddr() net.Addr { return agedAddr{c.Conn.RemoteAddr(), c.since} }

// agedAddr is the address of a peer with the start time of the connection.
type agedAddr struct {
	net.Addr
	since time.Time
}

// ageOf returns the age of the connection of an address, in milliseconds; empty if unknown.
func ageOf(a net.Addr) string {
	if aged, ok := a.(agedAddr); ok {
		return strconv.FormatInt(time.Since(aged.since).Milliseconds(), 10)
	}
	return ""
}

// authenticate records that the client has shown a certificate. forget is called when the
// connection is closed. authenticate fails if there are too many connections.
func (c *limitedConn) authenticate(kind int, holder string, forget func()) error {
	err := c.listener.authenticate(c, kind, holder, forget)
	c.authenticated = err == nil
	return err
}

// closeIfSilent closes the connection if no data arrives within the timeout.
func (c *limitedConn) closeIfSilent(timeout time.Duration) {
	time.AfterFunc(timeout, func() {
		if !c.received.Load() {
			_ = c.Close() // harmless if it is already closed
		}
	})
}

// errTooLong ends a handshake in which a client sends much more than a certificate needs.
var errTooLong = fmt.Errorf("the client has sent more than %d KiB without a certificate", maxHandshake>>10)

// Read implements net.Conn.
func (c *limitedConn) Read(b []byte) (int, error) {
	if c.authenticated {
		return c.Conn.Read(b)
	}
	if c.left <= 0 {
		return 0, errTooLong
	}
	n, err := c.Conn.Read(b[:min(len(b), c.left)])
	if n > 0 {
		c.received.Store(true)
	}
	c.left -= n
	return n, err
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}

// CloseWrite closes the sending half of the connection.
func (c *limitedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.New("connection: cannot close its sending half: it is not TCP")
}

// newLogLimit returns a rate limiter for log lines that an untrusted client can cause, so that they
// cannot fill the log.
func newLogLimit() *rate.Limiter { return rate.NewLimiter(rate.Every(time.Second), 10) }

// callers counts the active calls by certificate holder. Each call is a stream to machined, which
// limits its streams.
type callers struct {
	mu     sync.Mutex
	active map[string]int
}

// acquire counts a call until release is called. acquire fails if the active calls of the holder
// have reached the limit.
func (c *callers) acquire(holder string, limit int) (release func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.active[holder] >= limit {
		return nil, fmt.Errorf("you have %d active calls, which is the limit; end one first", limit)
	}
	c.active[holder]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.active[holder]--; c.active[holder] == 0 {
			delete(c.active, holder)
		}
	}, nil
}
