package uevent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/socket"
	"golang.org/x/sys/unix"
)

// ErrLost means that events were lost, because the reader was too slow. The caller must read the
// whole state again.
var ErrLost = errors.New("device events were lost")

// receiveBuffer is the size of the socket buffer, in bytes. It holds some thousand events, as many
// as a large machine sends while modules are loaded.
const receiveBuffer = 2 << 20

// kernelGroup is the multicast group of the events of the kernel. udev uses another group.
const kernelGroup = 1

// Listener receives events. It is not safe for concurrent use.
//
// It uses github.com/mdlayher/socket and not mdlayher/netlink. mdlayher/netlink requires a netlink
// header in each message, and device events have none.
type Listener struct {
	conn   *socket.Conn
	buffer []byte
}

// Listen starts to receive events. Next returns each event that happens after Listen has returned,
// or ErrLost. The caller must close the Listener.
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

// Next waits for the next event. After an error of ctx or of the socket, the Listener is unusable.
// After ErrLost, the caller can call Next again.
func (l *Listener) Next(ctx context.Context) (Event, error) {
	// ctx is not passed to Recvfrom: if ctx had a deadline, Recvfrom would wait for the deadline
	// even after a cancellation.
	defer context.AfterFunc(ctx, func() {
		// SetReadDeadline fails only if the socket is closed; then no caller waits.
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
		// The kernel has port number 0. Messages of other processes, which need privileges to send
		// to the group, are ignored.
		if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
			continue
		}
		if event, err := Parse(l.buffer[:n]); err == nil {
			return event, nil
		}
	}
}
