package connect

import (
	"context"
	"net"
	"sync"

	"github.com/orlop-os/orlop/pkg/client"
)

// Relay is the connection to a machine that relays connections to other machines. It is the machine
// of the endpoint.
type Relay struct {
	endpoint client.Endpoint

	mu     sync.Mutex
	client *client.Client // nil before its first use
}

// NewRelay returns a relay. The relay connects at its first use.
func NewRelay(endpoint client.Endpoint) *Relay { return &Relay{endpoint: endpoint} }

// endpointOf returns the endpoint of a machine behind the relay.
func (w *Relay) endpointOf(node string) client.Endpoint {
	return client.Endpoint{Address: node, Cert: w.endpoint.Cert, CA: w.endpoint.CA, Dialer: w.dial, BeforeCall: w.endpoint.BeforeCall}
}

func (w *Relay) dial(ctx context.Context, address string) (net.Conn, error) {
	c, err := w.Client(ctx)
	if err != nil {
		return nil, err
	}
	return c.Relay(ctx, address)
}

// Client returns the connection to the relaying machine. It connects again if the connection was
// lost, for example because that machine has rebooted.
func (w *Relay) Client(ctx context.Context) (*client.Client, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.client != nil && w.client.Connected() {
		return w.client, nil
	}
	w.closeLocked()
	var err error
	w.client, err = client.Dial(ctx, w.endpoint)
	return w.client, err
}

// Close closes the connection. The next call connects again.
func (w *Relay) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closeLocked()
}

func (w *Relay) closeLocked() {
	if w.client != nil {
		_ = w.client.Close() // no more data is sent
		w.client = nil
	}
}
