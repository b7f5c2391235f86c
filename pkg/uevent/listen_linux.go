package uevent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/socket"
	"golang.org/x/sys/unix"
)

// ErrLost says that events were lost because they were not taken in time: look at everything anew.
var ErrLost = errors.New("device events were lost")

// receiveBuffer holds some thousand events: what a large machine sends while modules are loaded.
const receiveBuffer = 2 << 20

// kernelGroup is the multicast group of the kernel's own messages; udev's have another.
const kernelGroup = 1

// Listener receives events. It is for one goroutine.
//
// It uses github.com/mdlayher/socket, not mdlayher/netlink: these messages travel in netlink
// packets but have no netlink header, which the latter insists on.
type Listener struct {
	conn   *socket.Conn
	buffer []byte
}

// Listen begins to receive events; those from now on are not missed. The caller closes the
// Listener.
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

// Close stops listening.
func (l *Listener) Close() error { return l.conn.Close() }

// Next waits for the next event. The error is the context's (the Listener is of no more use then),
// ErrLost (call Next again), or that of a broken socket.
func (l *Listener) Next(ctx context.Context) (Event, error) {
	// Not by giving it the context: with one that has a deadline it would wait for that, cancelled
	// or not.
	defer context.AfterFunc(ctx, func() {
		// fails only when the socket is closed, and then nobody waits
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
		// Only the kernel has port number 0. Anyone with enough privileges may send to the group.
		if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
			continue
		}
		if event, err := Parse(l.buffer[:n]); err == nil {
			return event, nil
		}
	}
}
