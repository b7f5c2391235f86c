// Package relay carries a connection inside a call of the management API (Machine.Relay): Conn is
// the caller's end of it, Join is what the machine in between does.
//
// Who may be connected with whom is machined's to decide, and what goes through is TLS between the
// two ends; this package sees bytes.
package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/panics"
)

// Chunk is the most that one message carries, in bytes.
const Chunk = 64 << 10

// closeTime is how long what was written may take to be sent after Close.
const closeTime = 5 * time.Second

// ParseTarget reads the address of a machine that is to be reached. It is an address that is in
// that machine's certificate and in no other: a name would have to be looked up, and 127.0.0.1 is
// every machine.
func ParseTarget(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	if err != nil || addr.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("machine %.80q: cannot be reached through another one: expected its IP address, without a port", text)
	}
	if addr = addr.Unmap(); !addr.IsGlobalUnicast() {
		return netip.Addr{}, fmt.Errorf("machine %s: cannot be reached through another one: it is no address of one machine alone; name the one that its certificate holds", addr)
	}
	return addr, nil
}

// Conn makes a connection of a call of Relay that has been answered. It owns the call: cancel,
// which ends it, is called when the connection is closed or broken off. A call that was ended by
// the machine in between has Read return its status.
func Conn(stream grpc.BidiStreamingClient[api.RelayData, api.RelayData], cancel context.CancelFunc) net.Conn {
	near, far := net.Pipe() // it has the deadlines that a call has not
	c := &conn{Conn: near, cancel: cancel}
	panics.Go("relay", func() { send(stream, far) })
	panics.Go("relay", func() { c.receive(stream, far) })
	return c
}

type conn struct {
	net.Conn
	cancel context.CancelFunc
	// the status of the call; written before the far end of the pipe is closed, and read after
	why error
}

// send passes on what is written.
func send(stream grpc.BidiStreamingClient[api.RelayData, api.RelayData], far net.Conn) {
	buf := make([]byte, Chunk)
	for {
		n, err := far.Read(buf)
		if n > 0 && stream.Send(&api.RelayData{Chunk: buf[:n]}) != nil {
			return // receive is told why
		}
		if err != nil {
			_ = stream.CloseSend() // it never fails
			return
		}
	}
}

// receive passes on what comes, until the call ends. What comes after Close is for nobody.
func (c *conn) receive(stream grpc.BidiStreamingClient[api.RelayData, api.RelayData], far net.Conn) {
	defer c.cancel()
	for {
		m, err := stream.Recv()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				c.why = err
			}
			_ = far.Close() // of a pipe; it never fails
			return
		}
		if len(m.Chunk) > 0 {
			_, _ = far.Write(m.Chunk)
		}
	}
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err == io.EOF && c.why != nil {
		err = c.why
	}
	return n, err
}

// Close implements net.Conn. What was written is still sent.
func (c *conn) Close() error {
	err := c.Conn.Close()
	time.AfterFunc(closeTime, c.cancel)
	return err
}

// Join passes bytes on between a call of Relay and a connection, which it closes. It returns when
// the connection has ended, when the caller has left, or when nothing has gone either way for a
// time. It holds one Chunk, and what gRPC holds of a stream.
func Join(stream grpc.BidiStreamingServer[api.RelayData, api.RelayData], conn net.Conn, idle time.Duration) error {
	defer func() { _ = conn.Close() }()
	moved := make(chan struct{}, 1)
	note := func() {
		select {
		case moved <- struct{}{}:
		default:
		}
	}
	up, down := make(chan error, 1), make(chan error, 1)
	go func() { up <- panics.Do("relay", func() error { return upward(stream, conn, note) }) }()
	go func() { down <- panics.Do("relay", func() error { return downward(stream, conn, note) }) }()
	for late := time.NewTimer(idle); ; late.Reset(idle) {
		select {
		case <-moved:
		case err := <-down:
			return err
		case err := <-up:
			if err != nil {
				return err
			}
			up = nil // what the other side has to say still comes
		case <-late.C: // returning ends the call, and with it a Send that hangs
			return status.Errorf(codes.DeadlineExceeded, "nothing was passed on for %v", idle)
		}
	}
}

// upward passes on what the caller sends, until he sends no more.
func upward(stream grpc.BidiStreamingServer[api.RelayData, api.RelayData], conn net.Conn, note func()) error {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			if half, ok := conn.(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite() // one that has ended already is downward's to tell
			}
			return nil
		}
		if err != nil {
			return err
		}
		if len(m.Chunk) > Chunk {
			return status.Errorf(codes.InvalidArgument, "a message of %d bytes cannot be passed on; at most %d", len(m.Chunk), Chunk)
		}
		if _, err := conn.Write(m.Chunk); err != nil {
			return nil // downward tells why, after what the other side has said before
		}
		note()
	}
}

// downward passes on what comes from the other side, until nothing comes any more.
func downward(stream grpc.BidiStreamingServer[api.RelayData, api.RelayData], conn net.Conn, note func()) error {
	buf := make([]byte, Chunk)
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			if err := stream.Send(&api.RelayData{Chunk: buf[:n]}); err != nil {
				return err
			}
			note()
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return status.Errorf(codes.Unavailable, "the connection broke off: %v", err)
		}
	}
}
