package balancer

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// connectTime is how long a server may take to accept a connection: the first packet may get
	// lost once, which costs a second.
	connectTime = 1500 * time.Millisecond
	// silence is how long the other end may leave sent data unacknowledged, or the kernel's
	// question whether it is still there, before a connection ends. A server that is gone is
	// noticed before; this is for one behind an address that others answer at, too.
	silence = 10 * time.Second
	// rest is how long one direction may go on when the other was broken off, for what had been
	// sent before.
	rest = 5 * time.Second
)

// connection is a client's connection with a server.
type connection struct {
	server           string
	client, upstream *net.TCPConn
}

// close breaks it off.
func (c *connection) close() {
	_ = c.client.Close() // nothing is written later than the kernel has it
	_ = c.upstream.Close()
}

// carry copies both ways until both have ended, and closes both ends. A direction that ends is
// ended at the other end, while the opposite one goes on. One that is broken off looks ended there,
// too: TLS, which is inside, tells the two apart.
func (c *connection) carry() {
	var both sync.WaitGroup
	both.Go(func() { c.forward(c.client, c.upstream) })
	c.forward(c.upstream, c.client)
	both.Wait()
	c.close()
}

// forward copies one way.
func (c *connection) forward(to, from *net.TCPConn) {
	_, err := io.Copy(to, from)
	if err != nil {
		soon := time.Now().Add(rest)
		_ = c.client.SetDeadline(soon) // a connection that is closed already needs none
		_ = c.upstream.SetDeadline(soon)
	}
	_ = to.CloseWrite() // an end that is gone is the opposite direction's to notice
}

// dialer connects with API servers. It refuses to connect with listen, where the balancer is: an
// endpoint whose name is this machine's would have it talk to itself.
func dialer(listen netip.AddrPort) *net.Dialer {
	return &net.Dialer{
		Timeout:         connectTime,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: silence / 2, Interval: silence / 5, Count: 2},
		ControlContext: func(_ context.Context, _, address string, raw syscall.RawConn) error {
			if to, err := netip.ParseAddrPort(address); err == nil && netip.AddrPortFrom(to.Addr().Unmap(), to.Port()) == listen {
				return errors.New("leads back to this machine")
			}
			var failed error
			err := raw.Control(func(fd uintptr) {
				failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence.Milliseconds()))
			})
			return errors.Join(err, failed)
		},
	}
}
