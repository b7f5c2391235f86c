package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/relay"
)

// Relay opens a connection through this machine to the API of another machine of the cluster. It
// can be used in Endpoint.Dialer for the other machine. The host of the address must be an IP
// address; the port is ignored. TLS over the connection authenticates the caller and the other
// machine to each other; the relaying machine sees only encrypted bytes. The connection ends when
// this Client is closed.
func (c *Client) Relay(ctx context.Context, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("machine %q: cannot connect: %w", address, err)
	}
	// the connection outlives ctx
	calling, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	stream, err := c.Machine.Relay(calling)
	if err == nil {
		err = stream.Send(&api.RelayData{Target: host})
	}
	// io.EOF: the call has ended, and Recv returns the reason
	if err == nil || errors.Is(err, io.EOF) {
		_, err = stream.Recv()
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("through machine %s: %w", c.address, err)
	}
	return relay.Conn(stream, cancel), nil
}
