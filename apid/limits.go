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
	// bytes of a message from a client; the largest messages have a payload of 1 MiB: a piece of an
	// archive, or the documents of a configuration
	maxRequest = 1<<20 + 64<<10
	maxAnswer  = 4 << 20 // bytes of a message to a client
	maxStreams = 100     // concurrent calls per connection
	// concurrent calls per certificate holder (pki.HolderID) that is no operator or admin
	maxCalls = 32
	// concurrent calls per operator or admin; orlopctl may call many machines through this machine
	maxCallsOperator = 128
	maxHeader        = 16 << 10 // bytes of a call's headers
	maxPerAddress    = 32       // concurrent connections per address
	maxPerHolder     = 32       // concurrent connections per certificate holder
	// flow-control window of a call: the bytes that a peer may send before apid reads them, in
	// addition to the message that apid is reading. Without this limit, gRPC enlarges the window up
	// to 16 MiB.
	streamWindow = 256 << 10
	// flow-control window of a connection: the bytes of all its calls that gRPC has not yet
	// read. gRPC reads them immediately and does not wait for apid, so this window can be smaller
	// than the sum of the windows of all calls.
	connWindow = 1 << 20
	// concurrent connections of operators and other clients with a certificate, without the
	// machines of the cluster
	maxConnections = 256
	// concurrent connections of machines of the cluster: each machine has one connection to each
	// control-plane machine (machined/membership/sync.go)
	maxMachines = 1024
	// concurrent connections that have not shown a certificate yet; beyond the limit, apid closes
	// one connection of the network that has the most of them (victimLocked)
	maxUnauthenticated = 128
	silentTimeout      = 3 * time.Second // longest time until the first byte of a connection
	// bytes that a client may send before it has shown a certificate
	maxHandshake     = 32 << 10
	handshakeTimeout = 10 * time.Second // longest time for TLS and the set-up of HTTP/2
	lingerTime       = time.Second      // time for a rejected client to read the TLS alert
	lingerBytes      = 64 << 10         // bytes that a rejected client may send in this time
	// apid closes the connections of a revoked client after this period, so the next call of the
	// client still gets the error. A removed machine calls every 4 seconds
	// (machined/membership/sync.go).
	revokedGracePeriod = 10 * time.Second
	// shortest interval between two pings of a client; apid disconnects a client that pings more
	// often. orlopctl and machines ping every 20 s, but in tests the clock of a client can run
	// eight times faster than the clock of the machine (docs/decisions/0042).
	keepaliveMin     = 2 * time.Second
	keepaliveTime    = 30 * time.Second // apid pings a connection that was silent for this time
	keepaliveTimeout = 20 * time.Second // longest time for the answer to a ping
	maxIdle          = 15 * time.Minute // apid closes a connection that had no calls for this time
	// bytes of the read buffer and of the write buffer of a connection; a small size saves memory
	transportBuffer = 4 << 10
)

// Rate limit for new connections of an address. The firewall of machined has the same limit.
const (
	ConnectionsPerAddress = 10 // connections per second on average
	ConnectionBurst       = 50 // connections in a burst
)

// limitListener limits the number of connections, and the number and rate of connections per
// address. It closes excess connections before the TLS handshake, because every client can request
// handshakes, and because a close costs a hundredth of a handshake.
//
// Connections that have not shown a certificate yet have a separate limit, so they cannot block
// clients with certificates. Beyond this limit, limitListener closes one connection of the network
// that has the most of them (victimLocked). Clients in other networks keep their connections, with
// the usual time to show a certificate.
type limitListener struct {
	net.Listener
	perAddress int
	maxByKind  [2]int // limits of connections with a certificate, by kind
	maxWaiting int    // limit of connections without a certificate
	silent     time.Duration
	rate       rate.Limit // connections per second from an address, on average
	burst      int        // connections in a burst

	mu         sync.Mutex
	addresses  map[netip.Addr]*address
	openByKind [2]int         // open connections with a certificate, by kind
	holders    map[string]int // open connections with a certificate, by holder
	waiting    []*limitedConn // connections without a certificate, the oldest first
	// time at which sweepLocked last removed addresses
	swept time.Time
}

// The kinds of clients with a certificate: machines of the cluster, and all other callers. Each
// kind has its own limit, so a large number of machines cannot block the operators.
const (
	userKind = iota
	machineKind
)

// address has the open connections and the rate limiter of an IP address.
type address struct {
	open    int
	limiter *rate.Limiter
}

// newLimitListener returns a limitListener for l. maxByKind has the limits of connections with a
// certificate, indexed by kind. maxWaiting is the limit of connections without a certificate.
// perSecond and burst are the rate limit of an address.
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
		accepted, victim := l.add(c, time.Now())
		if victim != nil {
			_ = victim.Close()
		}
		if accepted {
			c.closeIfSilent(l.silent)
			return c, nil
		}
		// The client only sees the end of the connection. Nothing depends on the error of Close.
		_ = conn.Close()
	}
}

// add counts a new connection. accepted is false if the limits of the address are reached. If there
// are now too many connections without a certificate, victim is the connection that the caller must
// close; otherwise victim is nil.
func (l *limitListener) add(c *limitedConn, now time.Time) (accepted bool, victim *limitedConn) {
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
		victim = l.victimLocked()
	}
	return true, victim
}

// victimLocked returns the connection without a certificate that Accept closes next. It selects the
// network with the most of these connections, then the address with the most in this network, and
// then the oldest connection of this address. If networks or addresses have equal numbers, the
// oldest connection decides. A few addresses of one network that use up the limit therefore
// displace only each other: other networks and the other addresses of the same network keep their
// connections.
func (l *limitListener) victimLocked() *limitedConn {
	networks, addresses := map[netip.Prefix]int{}, map[netip.Addr]int{}
	for _, c := range l.waiting {
		networks[networkOf(c.addr)]++
		addresses[c.addr]++
	}
	out := l.waiting[0]
	// waiting is sorted by age, so the older connection stays selected if the numbers are equal
	for _, c := range l.waiting[1:] {
		n, most := networks[networkOf(c.addr)], networks[networkOf(out.addr)]
		if n > most || networkOf(c.addr) == networkOf(out.addr) && addresses[c.addr] > addresses[out.addr] {
			out = c
		}
	}
	return out
}

// networkOf returns the network that likely has a single owner: the IPv4 /24 or the IPv6 /48 of an
// address. An IPv6 address from remoteAddr is the first address of its /64.
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

// authenticate counts a connection as a connection with a certificate. limitListener calls the
// function forget when the connection is closed. authenticate returns an error if too many
// connections of this kind or of this holder are open.
func (l *limitListener) authenticate(c *limitedConn, kind int, holder string, forget func()) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := slices.Index(l.waiting, c)
	if at < 0 {
		return net.ErrClosed // the connection is already closed, for example as a victim of Accept
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

// sweepLocked removes the addresses without a connection and with a full rate limiter. It does so
// at most once a minute.
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

// remoteAddr returns the address of the peer without port and zone. It returns the first address of
// the /64 for an IPv6 peer, because a client usually has a whole /64.
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
	kind          int    // kind of the client; authenticate sets it
	holder        string // holder of the certificate; authenticate sets it
	left          int    // bytes that the client may still send without a certificate
	authenticated bool   // needs no lock: set before another goroutine reads from the connection
	received      atomic.Bool
	forget        func()    // called when the connection is closed; authenticate sets it
	since         time.Time // start of the connection
}

// RemoteAddr implements net.Conn. The address contains the start time of the connection, because
// gRPC passes the address to every call.
func (c *limitedConn) RemoteAddr() net.Addr { return agedAddr{c.Conn.RemoteAddr(), c.since} }

// agedAddr is the address of a peer with the start time of the connection.
type agedAddr struct {
	net.Addr
	since time.Time
}

// ageOf returns the age of the connection with this remote address, in milliseconds as text. It
// returns "" if the address is no agedAddr.
func ageOf(a net.Addr) string {
	if aged, ok := a.(agedAddr); ok {
		return strconv.FormatInt(time.Since(aged.since).Milliseconds(), 10)
	}
	return ""
}

// authenticate records that the client has shown a certificate. The listener calls the function
// forget when the connection is closed. authenticate returns an error if too many connections are
// open.
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

// errTooLong ends a connection on which the client sends more data than a handshake needs.
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

// newLogLimit returns a rate limiter for the log lines that an untrusted client can cause: ten at
// once, and then one per second.
func newLogLimit() *rate.Limiter { return rate.NewLimiter(rate.Every(time.Second), 10) }

// callers counts the active calls of each certificate holder. Each call is a stream to machined,
// and machined limits the streams of apid.
type callers struct {
	mu     sync.Mutex
	active map[string]int
}

// acquire counts a call of a holder until release is called. It returns an error if the holder has
// reached the limit of active calls.
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
