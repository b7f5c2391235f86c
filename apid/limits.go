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

// What one client, and all together, may ask for.
const (
	// bytes of one message of a client: a piece of an archive, or the documents, has 1 MiB at most
	maxRequest = 1<<20 + 64<<10
	maxAnswer  = 4 << 20 // bytes of one message to a client
	maxStreams = 100     // calls at once on one connection
	// calls at once by one holder of certificates (pki.CommonNameOf) …
	maxCalls = 32
	// … and by an operator's, who may call many machines through this one
	maxCallsOperator = 128
	maxHeader        = 16 << 10 // bytes of a call's headers
	maxPerAddress    = 32       // connections at once from one address …
	maxOfOne         = 32       // … and by one holder
	// bytes that a peer may send of a call before they are taken, beside one message; gRPC would
	// let it grow to 16 MiB
	streamWindow = 256 << 10
	// bytes on their way over a connection, of all calls; they are taken off it at once
	connWindow = 1 << 20
	// connections at once in all, of those who have shown a certificate and are no machines of the
	// cluster
	maxConnections = 256
	// connections at once in all, of machines of the cluster: each keeps one with each
	// control-plane machine (machined/sync.go)
	maxMachines = 1024
	// connections at once in all, of those who have not yet; one of those who have the most makes
	// room for the next
	maxUnproved      = 128
	silentTimeout    = 3 * time.Second  // until the first byte of a connection
	maxHandshake     = 32 << 10         // bytes that a client may send until it has
	handshakeTimeout = 10 * time.Second // from the first byte to the end of TLS and HTTP/2 set-up
	lingerTime       = time.Second      // how long a refused client may take to read why …
	lingerBytes      = 64 << 10         // … and how much it may send meanwhile
	// how long the connection of a client stays open that counts no more: its calls are told so,
	// and a machine that was removed asks every 4 seconds (machined/sync.go)
	partTime = 10 * time.Second
	// a client that pings more often is disconnected; ours pings every 20 s, by a clock that may be
	// eight times faster (docs/decisions/0042)
	keepaliveMin     = 2 * time.Second
	keepaliveTime    = 30 * time.Second // apid pings a silent connection …
	keepaliveTimeout = 20 * time.Second // … and closes it when no answer comes
	maxIdle          = 15 * time.Minute // a connection without calls is closed
	// bytes of read and write buffer of a connection; small, for memory
	transportBuffer = 4 << 10
)

// How fast one address may begin connections. The kernel is told, too (machined).
const (
	ConnectionsPerAddress = 10 // connections a second, in the long run …
	ConnectionBurst       = 50 // … and as many at once after a pause
)

// limitListener refuses connections above a number in all, and above a number and a rate from one
// address, by closing them at once: that costs a hundredth of a handshake, which a stranger can ask
// for, too. Those who have shown no certificate yet are counted apart: some addresses that only
// connect, and say nothing, take no place from those who do. Among themselves they share fairly
// (crowded): who has fewer connections than others keeps them until he has shown a certificate, or
// his time is up.
type limitListener struct {
	net.Listener
	perAddress int
	total      [2]int // by kind
	unproved   int    // how many may be without a certificate
	silent     time.Duration
	every      rate.Limit // connections a second from one address
	burst      int

	mu        sync.Mutex
	addresses map[netip.Addr]*address
	sum       [2]int         // connections with a certificate, by kind …
	holders   map[string]int // … and by the certificate's holder
	waiting   []*limitedConn // those without, the oldest first
	// when addresses were last looked through for those that can be forgotten
	swept time.Time
}

// The kinds of those who have shown a certificate. They take no places from each other: however
// many machines a cluster has, its operators get in.
const (
	callerKind = iota
	machineKind
)

// address is one that has a connection, or had one not long ago.
type address struct {
	open int
	pace *rate.Limiter
}

func newLimitListener(l net.Listener, perAddress int, total [2]int, unproved int, every rate.Limit, burst int) *limitListener {
	return &limitListener{Listener: l, perAddress: perAddress, total: total, unproved: unproved, silent: silentTimeout, every: every, burst: burst, addresses: map[netip.Addr]*address{}, holders: map[string]int{}}
}

// Accept implements net.Listener.
func (l *limitListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &limitedConn{Conn: conn, list: l, addr: remoteAddr(conn), left: maxHandshake, since: time.Now()}
		c.release = sync.OnceFunc(func() { l.give(c) })
		taken, out := l.take(c, time.Now())
		if out != nil {
			_ = out.Close()
		}
		if taken {
			c.listen(l.silent)
			return c, nil
		}
		// Closing is the whole answer; there is nobody to tell that it failed.
		_ = conn.Close()
	}
}

// take takes a connection on, and returns the one that makes room for it, if one has to.
func (l *limitListener) take(c *limitedConn, now time.Time) (taken bool, out *limitedConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweepLocked(now)
	a, known := l.addresses[c.addr]
	if !known {
		a = &address{pace: rate.NewLimiter(l.every, l.burst)}
		l.addresses[c.addr] = a
	}
	if a.open >= l.perAddress || !a.pace.AllowN(now, 1) {
		return false, nil
	}
	l.waiting = append(l.waiting, c)
	a.open++
	if len(l.waiting) > l.unproved {
		out = l.crowdedLocked()
	}
	return true, out
}

// crowdedLocked is the one of those without a certificate that makes room: of the network with the
// most of them, of its address with the most, the oldest. Where several have the same, that with
// the oldest connection. So a dozen addresses that keep all places full take them from each other,
// and not from somebody else, whether he is in their network or not.
func (l *limitListener) crowdedLocked() *limitedConn {
	networks, addresses := map[netip.Prefix]int{}, map[netip.Addr]int{}
	for _, c := range l.waiting {
		networks[networkOf(c.addr)]++
		addresses[c.addr]++
	}
	out := l.waiting[0]
	for _, c := range l.waiting[1:] { // the oldest first, so that an older one stays
		n, most := networks[networkOf(c.addr)], networks[networkOf(out.addr)]
		if n > most || networkOf(c.addr) == networkOf(out.addr) && addresses[c.addr] > addresses[out.addr] {
			out = c
		}
	}
	return out
}

// networkOf is whose an address is, as one that has several is likely to have them: an IPv4 /24, or
// an IPv6 /48, of which addresses here are each a /64.
func networkOf(addr netip.Addr) netip.Prefix {
	bits := 24
	if addr.Is6() {
		bits = 48
	}
	network, err := addr.Prefix(bits)
	if err != nil { // it is no address
		return netip.Prefix{}
	}
	return network
}

// prove counts a connection among those that have shown a certificate. It fails if there are too
// many, in all or of this holder.
func (l *limitListener) prove(c *limitedConn, kind int, holder string, forget func()) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := slices.Index(l.waiting, c)
	if at < 0 {
		return net.ErrClosed // to make room
	}
	if l.sum[kind] >= l.total[kind] {
		return fmt.Errorf("%d connections are open; no more are taken", l.sum[kind])
	}
	if l.holders[holder] >= maxOfOne {
		return fmt.Errorf("%d connections of this certificate, and of others of its holder, are open; no more are taken", maxOfOne)
	}
	l.waiting = slices.Delete(l.waiting, at, at+1)
	l.sum[kind]++
	l.holders[holder]++
	c.kind, c.holder, c.forget = kind, holder, forget
	return nil
}

func (l *limitListener) give(c *limitedConn) {
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
		l.sum[c.kind]--
		if l.holders[c.holder]--; l.holders[c.holder] == 0 {
			delete(l.holders, c.holder)
		}
	}
	l.addresses[c.addr].open--
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

// remoteAddr is the peer's address without port and zone. An IPv6 client owns a whole /64, so that
// is what counts.
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
	list    *limitListener
	addr    netip.Addr
	release func()
	kind    int    // once it is counted by it …
	holder  string // … and by this
	left    int    // bytes that may still come before it is proved
	proved  bool   // set by the goroutine that reads, before others do
	spoke   atomic.Bool
	forget  func() // what is to be done besides when it is closed, once it is counted
	since   time.Time
}

// RemoteAddr implements net.Conn. gRPC hands it on to every call: with it goes how old the
// connection is.
func (c *limitedConn) RemoteAddr() net.Addr { return agedAddr{c.Conn.RemoteAddr(), c.since} }

// agedAddr is the address of a peer, and since when there is a connection from it.
type agedAddr struct {
	net.Addr
	since time.Time
}

// ageOf is how old the connection is that an address came with, in milliseconds; empty: it is not
// known.
func ageOf(a net.Addr) string {
	if aged, ok := a.(agedAddr); ok {
		return strconv.FormatInt(time.Since(aged.since).Milliseconds(), 10)
	}
	return ""
}

// prove says that the client has shown a certificate, and what is to be done when the connection is
// closed. It fails if there are too many.
func (c *limitedConn) prove(kind int, holder string, forget func()) error {
	err := c.list.prove(c, kind, holder, forget)
	c.proved = err == nil
	return err
}

// listen closes the connection when nothing has come of it within a time.
func (c *limitedConn) listen(most time.Duration) {
	time.AfterFunc(most, func() {
		if !c.spoke.Load() {
			_ = c.Close() // it may be closed already, which does no harm
		}
	})
}

// errTooLong ends a handshake in which a client sends much more than a certificate.
var errTooLong = fmt.Errorf("the client has sent more than %d KiB, and no certificate", maxHandshake>>10)

// Read implements net.Conn.
func (c *limitedConn) Read(b []byte) (int, error) {
	if c.proved {
		return c.Conn.Read(b)
	}
	if c.left <= 0 {
		return 0, errTooLong
	}
	n, err := c.Conn.Read(b[:min(len(b), c.left)])
	if n > 0 {
		c.spoke.Store(true)
	}
	c.left -= n
	return n, err
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

// newLines is the pace of lines of a kind in the log that somebody else may cause: he must not be
// able to fill it.
func newLines() *rate.Limiter { return rate.NewLimiter(rate.Every(time.Second), 10) }

// callers counts the calls that go on, by who makes them: each of them is a stream to machined, of
// which there are so many and no more.
type callers struct {
	mu  sync.Mutex
	now map[string]int
}

// enter counts one more call, until leave is called. It fails if the caller makes too many.
func (c *callers) enter(who string, most int) (leave func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now[who] >= most {
		return nil, fmt.Errorf("%d calls of yours go on; end one of them first", most)
	}
	c.now[who]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.now[who]--; c.now[who] == 0 {
			delete(c.now, who)
		}
	}, nil
}
