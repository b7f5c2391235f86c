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
	// connectTimeout bounds the time to connect to a server. It permits a single loss of the first
	// packet, which costs a second.
	connectTimeout = 1500 * time.Millisecond
	// silence is how long sent data or a keep-alive probe may stay unacknowledged before the kernel
	// ends a connection. The probes of package health usually notice a lost server earlier. This
	// limit is for a server with an address that other machines also hold.
	silence = 10 * time.Second
	// drainTime is how long one direction may continue after a break of the other, for data that
	// were sent before the break.
	drainTime = 5 * time.Second
)

// connection is a connection of a client with a server.
type connection struct {
	server           string
	client, upstream *net.TCPConn
}

// close closes both ends.
func (c *connection) close() {
	_ = c.client.Close() // close reports no write error here
	_ = c.upstream.Close()
}

// forward copies in both directions until both have ended, and closes both ends. If one direction
// ends, forward ends it towards its receiver, while the opposite direction continues. A broken
// direction ends towards its receiver in the same way; TLS inside the connection distinguishes an
// end from a break.
func (c *connection) forward() {
	var both sync.WaitGroup
	both.Go(func() { c.copyOneWay(c.client, c.upstream) })
	c.copyOneWay(c.upstream, c.client)
	both.Wait()
	c.close()
}

// copyOneWay copies in one direction.
func (c *connection) copyOneWay(to, from *net.TCPConn) {
	_, err := io.Copy(to, from)
	if err != nil {
		soon := time.Now().Add(drainTime)
		_ = c.client.SetDeadline(soon) // a closed connection needs no deadline
		_ = c.upstream.SetDeadline(soon)
	}
	_ = to.CloseWrite() // if to is closed already, the opposite direction notices
}

// dialer connects to API servers. It does not connect to listen, the address of the balancer: if
// the name of the endpoint resolves to this machine, the balancer would connect to itself.
func dialer(listen netip.AddrPort) *net.Dialer {
	return &net.Dialer{
		Timeout:         connectTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: silence / 2, Interval: silence / 5, Count: 2},
		ControlContext: func(_ context.Context, _, address string, raw syscall.RawConn) error {
			if to, err := netip.ParseAddrPort(address); err == nil && netip.AddrPortFrom(to.Addr().Unmap(), to.Port()) == listen {
				return errors.New("the address is this machine's balancer")
			}
			var failed error
			err := raw.Control(func(fd uintptr) {
				failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence.Milliseconds()))
			})
			return errors.Join(err, failed)
		},
	}
}
