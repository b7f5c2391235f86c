// Package linksocket opens UDP sockets on a link, and reads the messages of a socket on a
// goroutine. The DHCP clients (machined/network/dhcp, dhcp6) use the package. The clients decode
// and check the messages themselves.
package linksocket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/panics"
)

// Socket is an open socket with the goroutine that reads it. T is a decoded message.
type Socket[T any] struct {
	conn     net.PacketConn
	messages chan T
	done     chan struct{}
}

// Listen opens a UDP socket that is bound to a port of a link, but to no address. network is "udp4"
// or "udp6". With broadcast, the socket may also send to the broadcast address of IPv4.
func Listen(network, link string, port int, broadcast bool) (net.PacketConn, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) {
			failed = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.BindToDevice(int(fd), link))
			if broadcast {
				failed = errors.Join(failed, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1))
			}
		})
		return errors.Join(err, failed)
	}}
	return lc.ListenPacket(context.Background(), network, fmt.Sprintf(":%d", port))
}

// Read starts a goroutine that reads messages of at most size bytes from conn. task names the
// goroutine in reports of panics. decode converts a message; if it returns false, the message is
// dropped. decode must not retain b. A panic in decode ends the goroutine.
func Read[T any](conn net.PacketConn, task string, size int, decode func(b []byte, from net.Addr) (T, bool)) *Socket[T] {
	s := &Socket[T]{conn: conn, messages: make(chan T), done: make(chan struct{})}
	panics.Go(task, func() { s.read(size, decode) })
	return s
}

// Messages returns the channel of decoded messages. For a nil Socket, it returns nil.
func (s *Socket[T]) Messages() <-chan T {
	if s == nil {
		return nil
	}
	return s.messages
}

// Send sends a message. gone is true if the link of the socket does not exist any more.
func (s *Socket[T]) Send(b []byte, to net.Addr) (gone bool, err error) {
	_, err = s.conn.WriteTo(b, to)
	return errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV), err
}

// Close closes the socket and ends its goroutine. For a nil Socket, it does nothing.
func (s *Socket[T]) Close() {
	if s == nil {
		return
	}
	close(s.done)
	s.conn.Close()
}

// read delivers messages until the socket is closed.
func (s *Socket[T]) read(size int, decode func([]byte, net.Addr) (T, bool)) {
	buf := make([]byte, size)
	for {
		n, from, err := s.conn.ReadFrom(buf)
		// If the link goes down, or if a message to a closed port is rejected, the kernel returns
		// an error once. The socket remains usable.
		if errors.Is(err, unix.ENETDOWN) || errors.Is(err, unix.ECONNREFUSED) {
			continue
		}
		if err != nil {
			return
		}
		m, ok := decode(buf[:n:n], from)
		if !ok {
			continue
		}
		select {
		case s.messages <- m:
		case <-s.done:
			return
		}
	}
}
