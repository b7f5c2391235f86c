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

// Relay opens a connection to the API of another machine of the cluster, through this one:
// Endpoint.Dialer of the other. Of the address only the host counts, which must be an IP address.
// Who calls is proved to the other machine, and the other machine to the caller, by the TLS that is
// spoken over it; the machine in between takes no part. The connection lasts as long as this
// Client.
func (c *Client) Relay(ctx context.Context, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("machine %q: cannot connect: %w", address, err)
	}
	// the connection outlives the opening of it
	calling, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	stream, err := c.Machine.Relay(calling)
	if err == nil {
		err = stream.Send(&api.RelayData{Target: host})
	}
	if err == nil || errors.Is(err, io.EOF) { // io.EOF: the call has ended, and Recv says why
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
