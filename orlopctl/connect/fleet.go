package connect

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/relay"
)

// MaxStreams and MaxParallel bound the connections through a relay, because a machine relays at
// most eight connections of the same caller. A finished connection counts until both ends have
// closed it.
const (
	MaxStreams  = 8 // concurrent machines if each call streams
	MaxParallel = 4 // concurrent machines if each call ends by itself
)

// ParseNodes parses the addresses of the machines and rejects duplicates.
func ParseNodes(named []string) ([]string, error) {
	var nodes []string
	for _, name := range named {
		addr, err := relay.ParseTarget(name)
		if err != nil {
			return nil, exit.Usagef("--nodes: %w", err)
		}
		if slices.Contains(nodes, addr.String()) {
			return nil, exit.Usagef("--nodes: machine %s is named twice", addr)
		}
		nodes = append(nodes, addr.String())
	}
	return nodes, nil
}

// Fleet is the set of machines of a command that handles several machines itself: the machines of
// --nodes, or without --nodes all endpoints of the context.
type Fleet struct {
	conn    *Connector
	Names   []string          // addresses of the machines
	Relayed bool              // the machines are reached through the endpoint's machine
	relay   *Relay            // nil before the first use
	clients []*client.Client  // per machine; reused because a machine limits new connections
	Trust   *x509.Certificate // a machine CA that is trusted beside the context's CA
}

// Fleet returns the machines of --nodes, or without --nodes all endpoints of the context.
func (conn *Connector) Fleet() (*Fleet, error) {
	if len(conn.Flags.Nodes) > 0 {
		nodes, err := ParseNodes(conn.Flags.Nodes)
		return &Fleet{conn: conn, Names: nodes, Relayed: true, clients: make([]*client.Client, len(nodes))}, err
	}
	e, err := conn.Machine()
	names := append([]string{e.Address}, e.Fallback...)
	return &Fleet{conn: conn, Names: names, clients: make([]*client.Client, len(names))}, err
}

// Endpoint returns the endpoint of machine i. It reads the context each time, because the context
// can change.
func (f *Fleet) Endpoint(i int) (client.Endpoint, error) {
	e, err := f.conn.Machine()
	if err != nil {
		return e, err
	}
	if f.Trust != nil && e.CA != nil {
		e.CA.AddCert(f.Trust)
	}
	if !f.Relayed {
		e.Address, e.Fallback = f.Names[i], nil
		return e, nil
	}
	if e.CA == nil {
		return e, ErrOnlyFingerprint("--nodes")
	}
	if f.relay == nil {
		f.relay = NewRelay(e)
	}
	to := f.relay.endpointOf(f.Names[i])
	to.CA = e.CA
	return to, nil
}

// Client returns a connection to machine i. It connects to e if there is no connection that still
// works.
func (f *Fleet) Client(ctx context.Context, i int, e client.Endpoint) (*client.Client, error) {
	if c := f.clients[i]; c != nil {
		if c.Connected() {
			return c, nil
		}
		_ = c.Close() // the connection is lost
		f.clients[i] = nil
	}
	ctx, cancel := context.WithTimeout(ctx, DefaultTimeout)
	defer cancel()
	var err error
	f.clients[i], err = client.Dial(ctx, e)
	return f.clients[i], err
}

// Call makes a call to machine i.
func (f *Fleet) Call(ctx context.Context, i int, do func(context.Context, *client.Client) error) error {
	e, err := f.Endpoint(i)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, f.conn.Timeout(ApplyTimeout))
	defer cancel()
	c, err := f.Client(ctx, i, e)
	if err != nil {
		return err
	}
	return do(ctx, c)
}

// All makes a call to each machine concurrently, and returns the error of each. do must be safe for
// concurrent use.
func (f *Fleet) All(ctx context.Context, do func(ctx context.Context, i int, c *client.Client) error) []error {
	ctx, cancel := context.WithTimeout(ctx, f.conn.Timeout(DefaultTimeout))
	defer cancel()
	errs := make([]error, len(f.Names))
	slots := make(chan struct{}, MaxParallel)
	var running sync.WaitGroup
	for i := range f.Names {
		e, err := f.Endpoint(i)
		if err != nil {
			errs[i] = err
			continue
		}
		running.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			c, err := f.Client(ctx, i, e)
			if err == nil {
				err = do(ctx, i, c)
			}
			errs[i] = err
		})
	}
	running.Wait()
	return errs
}

// CloseRelay closes the connection to the relay, if it is open. The next call connects again.
func (f *Fleet) CloseRelay() {
	if f.relay != nil {
		f.relay.Close()
	}
}

// Failed prints the reason of each failed machine. It returns nil if all machines have succeeded.
// Otherwise it returns an error with the failed machines, with the text `meaning` at its end, and
// with the exit status of the first failed machine.
func (f *Fleet) Failed(ios *iostreams.Streams, errs []error, meaning string) error {
	if len(f.Names) == 1 {
		return errs[0]
	}
	var names []string
	code := exit.OK
	for i, err := range errs {
		if err == nil {
			continue
		}
		names = append(names, f.Names[i])
		ios.Errorln(f.Names[i] + ": " + exit.Message(err))
		if status, _ := exit.Code(err); code == exit.OK {
			code = status
		}
	}
	if code == exit.OK {
		return nil
	}
	return &exit.Error{Code: code, Err: fmt.Errorf("%d of %d machines failed: %s; %s", len(names), len(f.Names), strings.Join(names, ", "), meaning)}
}

// Close closes all connections. A later call connects again, with the values that the context has
// then.
func (f *Fleet) Close() {
	for i, c := range f.clients {
		if c != nil {
			_ = c.Close() // no more data is sent
			f.clients[i] = nil
		}
	}
	if f.relay != nil {
		f.relay.Close()
		f.relay = nil
	}
}

// ErrOnlyFingerprint returns the error for an operation on other machines if the context has only
// the fingerprint of the endpoint's machine. The operation needs a CA to verify the other machines.
func ErrOnlyFingerprint(operation string) error {
	return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("%s: cannot verify other machines: there is only the fingerprint of the endpoint's machine", operation), Hint: "pass --ca (the cluster's machine CA), or store it with `orlopctl config set NAME --ca`"}
}
