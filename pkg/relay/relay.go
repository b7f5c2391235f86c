// Package relay forwards calls and connections without decoding them.
//
// CopyCall forwards a gRPC call, message by message, in both directions at once. A connection goes
// through a call of the management API (Machine.Relay): Conn is the end of the caller, and Join is
// the implementation on the machine in between.
//
// The callers decide which calls and connections are permitted. The bytes of a connection are TLS
// between its two ends; this package only copies bytes.
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

// Chunk is the maximum payload of a message, in bytes.
const Chunk = 64 << 10

// closeTimeout is the timeout for sending pending data after Close.
const closeTimeout = 5 * time.Second

// ParseTarget parses the address of the target machine. It must be an address that only the
// certificate of this machine contains: a name would need a lookup, and 127.0.0.1 is the address of
// every machine.
func ParseTarget(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	if err != nil || addr.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("machine %.80q: cannot relay: expected its IP address, without a port", text)
	}
	if addr = addr.Unmap(); !addr.IsGlobalUnicast() {
		return netip.Addr{}, fmt.Errorf("machine %s: cannot relay: it is not a unicast address; use the address in the certificate of the machine", addr)
	}
	return addr, nil
}

// Conn returns a connection for an answered call of Relay. It owns the call: it calls cancel, which
// ends the call, when the connection is closed or broken. If the machine in between has ended the
// call, Read returns its status.
func Conn(stream grpc.BidiStreamingClient[api.RelayData, api.RelayData], cancel context.CancelFunc) net.Conn {
	near, far := net.Pipe() // adds deadlines, which a call does not have
	c := &conn{Conn: near, cancel: cancel}
	panics.Go("relay", func() { send(stream, far) })
	panics.Go("relay", func() { c.receive(stream, far) })
	return c
}

type conn struct {
	net.Conn
	cancel context.CancelFunc
	// status of the call; written before the far end of the pipe is closed, and read after that
	why error
}

// send forwards written data.
func send(stream grpc.BidiStreamingClient[api.RelayData, api.RelayData], far net.Conn) {
	buf := make([]byte, Chunk)
	for {
		n, err := far.Read(buf)
		if n > 0 && stream.Send(&api.RelayData{Chunk: buf[:n]}) != nil {
			return // receive gets the reason
		}
		if err != nil {
			_ = stream.CloseSend() // never fails
			return
		}
	}
}

// receive forwards received data until the call ends. Data after Close is discarded.
func (c *conn) receive(stream grpc.BidiStreamingClient[api.RelayData, api.RelayData], far net.Conn) {
	defer c.cancel()
	for {
		m, err := stream.Recv()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				c.why = err
			}
			_ = far.Close() // the end of a pipe; never fails
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

// Close implements net.Conn. Pending data is still sent.
func (c *conn) Close() error {
	err := c.Conn.Close()
	time.AfterFunc(closeTimeout, c.cancel)
	return err
}

// Join copies bytes between a call of Relay and a connection, and closes the connection. It returns
// when the connection has ended, when the caller has disconnected, or after a time without data in
// either direction. It buffers one Chunk in addition to the gRPC buffers of a stream.
func Join(stream grpc.BidiStreamingServer[api.RelayData, api.RelayData], conn net.Conn, idle time.Duration) error {
	defer func() { _ = conn.Close() }()
	late := time.NewTimer(idle)
	defer late.Stop()
	moved := func() { late.Reset(idle) }
	up, down := make(chan error, 1), make(chan error, 1)
	go func() { up <- panics.Do("relay", func() error { return upward(stream, conn, moved) }) }()
	go func() { down <- panics.Do("relay", func() error { return downward(stream, conn, moved) }) }()
	for {
		select {
		case err := <-down:
			return err
		case err := <-up:
			if err != nil {
				return err
			}
			up = nil // data from the target still arrives
			moved()
		case <-late.C: // the return ends the call, and with it a hanging Send
			return status.Errorf(codes.DeadlineExceeded, "no data was relayed for %v", idle)
		}
	}
}

// upward copies data from the caller until the caller closes its side.
func upward(stream grpc.BidiStreamingServer[api.RelayData, api.RelayData], conn net.Conn, moved func()) error {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			if half, ok := conn.(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite() // downward returns the error of a closed connection
			}
			return nil
		}
		if err != nil {
			return err
		}
		if len(m.Chunk) > Chunk {
			return status.Errorf(codes.InvalidArgument, "cannot relay a message of %d bytes; limit %d", len(m.Chunk), Chunk)
		}
		if _, err := conn.Write(m.Chunk); err != nil {
			return nil // downward returns the reason, after the last data of the target
		}
		moved()
	}
}

// downward copies data from the target until the target closes its side.
func downward(stream grpc.BidiStreamingServer[api.RelayData, api.RelayData], conn net.Conn, moved func()) error {
	buf := make([]byte, Chunk)
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			if err := stream.Send(&api.RelayData{Chunk: buf[:n]}); err != nil {
				return err
			}
			moved()
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return status.Errorf(codes.Unavailable, "the connection broke: %v", err)
		}
	}
}
