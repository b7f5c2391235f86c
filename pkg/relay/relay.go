// Package relay forwards gRPC calls and connections without decoding their content.
//
// CopyCall forwards a gRPC call, message by message and in both directions. A forwarded connection
// goes through a call of the management API (Machine.Relay) on the machine in the middle. Conn is
// the client's end of the connection, and Join is the implementation on the machine in the middle.
//
// The callers of the package decide which calls and connections are permitted. The two ends of a
// connection use TLS, so the machine in the middle sees only encrypted bytes.
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

// Chunk is the maximum number of data bytes in a message.
const Chunk = 64 << 10

// closeTimeout is the time that Close leaves for sending the pending data.
const closeTimeout = 5 * time.Second

// ParseTarget parses the IP address of the target machine. It rejects a name, because a name needs
// a lookup. It rejects addresses that are not unique to a machine, for example 127.0.0.1, because
// the caller verifies the certificate of the target by its address.
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

// Conn returns a connection over a call of Relay, after the first message of the machine in the
// middle. The connection owns the call: it calls cancel when it is closed or broken, and cancel
// ends the call. If the machine in the middle ends the call, Read returns the status of the call.
func Conn(stream grpc.BidiStreamingClient[api.RelayData, api.RelayData], cancel context.CancelFunc) net.Conn {
	near, far := net.Pipe() // a pipe has deadlines; a call has none
	c := &conn{Conn: near, cancel: cancel}
	panics.Go("relay", func() { send(stream, far) })
	panics.Go("relay", func() { c.receive(stream, far) })
	return c
}

type conn struct {
	net.Conn
	cancel context.CancelFunc
	// status of the call; receive writes it before it closes the far end of the pipe, and Read
	// reads it after the pipe is closed
	why error
}

// send sends the data that was written to the connection.
func send(stream grpc.BidiStreamingClient[api.RelayData, api.RelayData], far net.Conn) {
	buf := make([]byte, Chunk)
	for {
		n, err := far.Read(buf)
		if n > 0 && stream.Send(&api.RelayData{Chunk: buf[:n]}) != nil {
			return // receive gets the error
		}
		if err != nil {
			_ = stream.CloseSend() // never fails
			return
		}
	}
}

// receive passes the received data to the readers of the connection, until the call ends. After
// Close it discards the data.
func (c *conn) receive(stream grpc.BidiStreamingClient[api.RelayData, api.RelayData], far net.Conn) {
	defer c.cancel()
	for {
		m, err := stream.Recv()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				c.why = err
			}
			_ = far.Close() // never fails for a pipe
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

// Close implements net.Conn. Pending data is sent within closeTimeout.
func (c *conn) Close() error {
	err := c.Conn.Close()
	time.AfterFunc(closeTimeout, c.cancel)
	return err
}

// Join copies bytes between a call of Relay and a connection. It returns when the target closes the
// connection, when the caller disconnects, or after the time `idle` without data in either
// direction. Then it closes the connection. It buffers a Chunk per direction, in addition to the
// buffers of gRPC.
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
			up = nil // the target can still send data
			moved()
		case <-late.C: // the return ends the call, and thereby a blocked Send
			return status.Errorf(codes.DeadlineExceeded, "no data was relayed for %v", idle)
		}
	}
}

// upward copies data from the caller to the target, until the caller closes its side.
func upward(stream grpc.BidiStreamingServer[api.RelayData, api.RelayData], conn net.Conn, moved func()) error {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			if half, ok := conn.(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite() // downward returns the error of the connection
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
			return nil // downward returns the error, after the last data of the target
		}
		moved()
	}
}

// downward copies data from the target to the caller, until the target closes its side.
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
