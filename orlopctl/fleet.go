package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/client"
)

// fleet are the machines of a command that handles several machines itself: the machines of
// --nodes, or else all endpoints of the context.
type fleet struct {
	conn    *connector
	names   []string          // their addresses
	relayed bool              // reached through the endpoint's machine
	relay   *relayConn        // the relay; nil before its first use
	clients []*client.Client  // to each machine; a machine limits new connections per address
	trust   *x509.Certificate // a machine CA that is trusted in addition to the context's CA
}

func (conn *connector) fleet() (*fleet, error) {
	if len(conn.flags.nodes) > 0 {
		nodes, err := parseNodes(conn.flags.nodes)
		return &fleet{conn: conn, names: nodes, relayed: true, clients: make([]*client.Client, len(nodes))}, err
	}
	e, err := conn.machine()
	names := append([]string{e.Address}, e.Fallback...)
	return &fleet{conn: conn, names: names, clients: make([]*client.Client, len(names))}, err
}

// endpoint returns the endpoint of a machine, with the present values of the context.
func (f *fleet) endpoint(i int) (client.Endpoint, error) {
	e, err := f.conn.machine()
	if err != nil {
		return e, err
	}
	if f.trust != nil && e.CA != nil {
		e.CA.AddCert(f.trust)
	}
	if !f.relayed {
		e.Address, e.Fallback = f.names[i], nil
		return e, nil
	}
	if e.CA == nil {
		return e, errOnlyFingerprint()
	}
	if f.relay == nil {
		f.relay = &relayConn{endpoint: e}
	}
	to := f.relay.endpointOf(f.names[i])
	to.CA = e.CA
	return to, nil
}

// connected returns a connection to a machine: the existing connection if it still works.
func (f *fleet) connected(ctx context.Context, i int, e client.Endpoint) (*client.Client, error) {
	if c := f.clients[i]; c != nil {
		if c.Connected() {
			return c, nil
		}
		_ = c.Close() // the connection is lost
		f.clients[i] = nil
	}
	ctx, cancel := context.WithTimeout(ctx, usualTimeout)
	defer cancel()
	var err error
	f.clients[i], err = client.Dial(ctx, e)
	return f.clients[i], err
}

// call makes a call to one machine.
func (f *fleet) call(ctx context.Context, i int, do func(context.Context, *client.Client) error) error {
	e, err := f.endpoint(i)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, f.conn.timeout(applyTimeout))
	defer cancel()
	c, err := f.connected(ctx, i, e)
	if err != nil {
		return err
	}
	return do(ctx, c)
}

// all makes a call to each machine concurrently, and returns the error of each. do must be safe for
// concurrent use.
func (f *fleet) all(ctx context.Context, do func(ctx context.Context, i int, c *client.Client) error) []error {
	ctx, cancel := context.WithTimeout(ctx, f.conn.timeout(usualTimeout))
	defer cancel()
	errs := make([]error, len(f.names))
	places := make(chan struct{}, maxParallel)
	var running sync.WaitGroup
	for i := range f.names {
		e, err := f.endpoint(i)
		if err != nil {
			errs[i] = err
			continue
		}
		running.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			c, err := f.connected(ctx, i, e)
			if err == nil {
				err = do(ctx, i, c)
			}
			errs[i] = err
		})
	}
	running.Wait()
	return errs
}

// failed returns nil if all machines have succeeded. Otherwise the error lists the failed machines
// with their reasons, and has the exit status of the first.
func (f *fleet) failed(ios *iostreams.Streams, errs []error, meaning string) error {
	if len(f.names) == 1 {
		return errs[0]
	}
	var names []string
	code := exit.OK
	for i, err := range errs {
		if err == nil {
			continue
		}
		names = append(names, f.names[i])
		ios.Errorln(f.names[i] + ": " + exit.Message(err))
		if status, _ := exit.Code(err); code == exit.OK {
			code = status
		}
	}
	if code == exit.OK {
		return nil
	}
	return &exit.Error{Code: code, Err: fmt.Errorf("%d of %d machines failed: %s; %s", len(names), len(f.names), strings.Join(names, ", "), meaning)}
}

// close closes all connections. A later call connects again with the values of the context at that
// time.
func (f *fleet) close() {
	for i, c := range f.clients {
		if c != nil {
			_ = c.Close() // no more data is sent
			f.clients[i] = nil
		}
	}
	if f.relay != nil {
		f.relay.close()
		f.relay = nil
	}
}

func errOnlyFingerprint() error {
	return &exit.Error{Code: exit.Usage, Err: errors.New("--nodes: cannot verify other machines: there is only the fingerprint of the endpoint's machine"), Hint: "pass --ca (the cluster's machine CA), or store it with `orlopctl config set NAME --ca`"}
}
