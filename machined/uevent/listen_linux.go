package uevent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/socket"
	"golang.org/x/sys/unix"
)

// ErrLost is returned when events were lost because the reader was too slow: the caller has to read
// the whole state again.
var ErrLost = errors.New("device events were lost")

// receiveBuffer has room for some thousand events: a large machine sends that many while modules
// are loaded.
const receiveBuffer = 2 << 20

// kernelGroup is the multicast group of the kernel's messages; udev uses another group.
const kernelGroup = 1

// Listener receives events. It is not safe for concurrent use.
//
// It uses github.com/mdlayher/socket instead of mdlayher/netlink, because these messages are in
// netlink packets without the netlink header that the latter requires.
type Listener struct {
	conn   *socket.Conn
	buffer []byte
}

// Listen starts to receive events; no later event is missed. The caller closes the Listener.
func Listen() (*Listener, error) {
	conn, err := socket.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_KOBJECT_UEVENT, "uevent", nil)
	if err != nil {
		return nil, fmt.Errorf("device events: cannot listen: %w", err)
	}
	if err := conn.SetReadBuffer(receiveBuffer); err != nil {
		return nil, errors.Join(fmt.Errorf("device events: cannot enlarge buffer: %w", err), conn.Close())
	}
	if err := conn.Bind(&unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: kernelGroup}); err != nil {
		return nil, errors.Join(fmt.Errorf("device events: cannot listen: %w", err), conn.Close())
	}
	return &Listener{conn: conn, buffer: make([]byte, 16<<10)}, nil
}

// Close stops the Listener.
func (l *Listener) Close() error { return l.conn.Close() }

// Next waits for the next event. The error is from the context (then the Listener is unusable), or
// ErrLost (call Next again), or from a broken socket.
func (l *Listener) Next(ctx context.Context) (Event, error) {
	// The context is not passed to the socket, because with a deadline the socket would wait for it
	// even after a cancellation.
	defer context.AfterFunc(ctx, func() {
		// fails only if the socket is closed, and then no caller waits
		_ = l.conn.SetReadDeadline(time.Unix(1, 0))
	})()
	for {
		n, from, err := l.conn.Recvfrom(context.Background(), l.buffer, 0)
		switch {
		case errors.Is(err, unix.ENOBUFS):
			return Event{}, ErrLost
		case ctx.Err() != nil:
			return Event{}, ctx.Err()
		case err != nil:
			return Event{}, fmt.Errorf("device events: cannot receive: %w", err)
		}
		// Only the kernel has port number 0. Any process with enough privileges can send to the
		// group.
		if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
			continue
		}
		if event, err := Parse(l.buffer[:n]); err == nil {
			return event, nil
		}
	}
}
