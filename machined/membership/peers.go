package membership

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// callAllTimeout bounds one parallel call of several machines, including the connections.
const callAllTimeout = 4 * time.Second

// Peers are the persistent connections to the other machines of the cluster.
type Peers struct {
	deps   *Deps
	ledger *Ledger
	state  *cell.Cell[State] // membership of this machine, if it is a worker

	mu  sync.Mutex
	all map[netip.Addr]*peerConn
}

type peerConn struct {
	lock   chan struct{} // holds one element while a goroutine dials or checks the connection
	client *client.Client
	cert   []byte // client certificate of the last dial
}

// failedCall is the error of a call together with the client certificate that the call presented.
// The machine may have renewed its certificate since the call; then an error about the presented
// certificate does not apply to the new certificate.
type failedCall struct {
	error
	cert []byte // DER; empty if unknown
}

func (f failedCall) Unwrap() error { return f.error }

// connTo returns the connection to a machine of the cluster and the client certificate of the
// connection. If a call fails, the caller of connTo must close the client.
func (p *Peers) connTo(ctx context.Context, addr netip.Addr) (*client.Client, []byte, error) {
	p.mu.Lock()
	if p.all == nil {
		p.all = map[netip.Addr]*peerConn{}
	}
	c := p.all[addr]
	if c == nil {
		c = &peerConn{lock: make(chan struct{}, 1)}
		p.all[addr] = c
	}
	p.mu.Unlock()
	select {
	case c.lock <- struct{}{}:
		defer func() { <-c.lock }()
	case <-ctx.Done():
		return nil, nil, fmt.Errorf("machine %s: cannot connect: %w", addr, context.Cause(ctx))
	}
	if c.client != nil && c.client.Connected() {
		return c.client, c.cert, nil
	}
	if c.client != nil {
		_ = c.client.Close() // the connection is broken
		c.client = nil
	}
	var err error
	c.client, c.cert, err = p.Dial(ctx, addr)
	return c.client, c.cert, err
}

// Dial connects to another control-plane machine with the machine certificate. cert is the client
// certificate of the connection (DER).
func (p *Peers) Dial(ctx context.Context, addr netip.Addr) (c *client.Client, cert []byte, err error) {
	e, err := p.Endpoint(netip.AddrPortFrom(addr, paths.PortApid).String())
	if err != nil {
		return nil, nil, err
	}
	e.Accepts = p.checkControlPlane
	c, err = p.deps.Transport.Dial(ctx, e)
	return c, e.Cert.Certificate[0], err
}

// Endpoint returns the endpoint of the cluster's machine at an address, with this machine's
// certificate.
func (p *Peers) Endpoint(address string) (client.Endpoint, error) {
	e, c := client.Endpoint{Address: address}, p.deps.config()
	if c == nil || c.Cluster == nil {
		return e, errors.New("this machine belongs to no cluster, so no other machine trusts it; apply a configuration with a Cluster document")
	}
	if member, _ := p.state.Get(); c.IsWorker() && !member.Joined {
		return e, errors.New("no other machine trusts this one, because it has not joined the cluster yet (`orlopctl get membership`)")
	} else if !c.IsWorker() && c.Cluster.Spec.PKI.Machine.Key.IsZero() {
		return e, errors.New("no other machine trusts this one, because its configuration has no key of the machine CA; add Cluster.spec.pki.machine.key")
	}
	e.CA, e.Accepts = MachinePool(c), p.checkMember
	var err error
	if e.Cert, err = p.deps.Certificate(); err != nil {
		return e, fmt.Errorf("this machine's certificate cannot be used: %w; try again", err)
	}
	return e, nil
}

// checkMember rejects the certificate of a removed machine.
func (p *Peers) checkMember(cert *x509.Certificate) error {
	if why := trust.CheckRevoked(p.ledger.Current().Revoked.Active(), cert); why != nil {
		return fmt.Errorf("its certificate is revoked in the cluster (%w)", why)
	}
	return nil
}

// checkControlPlane does the check of checkMember, and rejects the certificate of a worker. A
// worker has a certificate for its source address, and retains it after a change of the address; a
// control-plane machine may have that address now.
func (p *Peers) checkControlPlane(cert *x509.Certificate) error {
	if pki.TicketOf(cert) != "" {
		return errors.New("it presents the certificate of a worker in place of a control-plane machine; check which machine has that address")
	}
	return p.checkMember(cert)
}

// closeExcept closes the connections to all machines except the named machines.
func (p *Peers) closeExcept(named []netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for addr, old := range p.all {
		if slices.Contains(named, addr) {
			continue
		}
		select {
		case old.lock <- struct{}{}:
			if old.client != nil {
				// a running call fails, because its machine is not in the list any more
				_ = old.client.Close()
			}
			delete(p.all, addr)
			<-old.lock
		default: // a goroutine is dialing; the next round closes the connection
		}
	}
}

// Call makes a call to another machine of the cluster. Its error is a failedCall.
func (p *Peers) Call(ctx context.Context, addr netip.Addr, do func(*client.Client) error) error {
	c, cert, err := p.connTo(ctx, addr)
	if err != nil {
		return failedCall{err, cert}
	}
	if err := do(c); err != nil {
		// The connection may be the cause: the server may have revoked the client certificate that
		// this machine presented. The next call dials again.
		_ = c.Close()
		return failedCall{err, cert}
	}
	return nil
}

// peerAnswer is the result of a call to another machine.
type peerAnswer[T any] struct {
	from   netip.Addr
	answer T
	err    error
}

// callAll makes a call to several machines in parallel and passes each answer to receive(). It
// returns when receive() returns true or all machines have answered. A call that reaches the
// timeout gives an answer with an error. If callAll returns early, the running calls continue in
// the background.
func callAll[T any](ctx context.Context, p *Peers, addrs []netip.Addr, do func(context.Context, *client.Client) (T, error), receive func(peerAnswer[T]) (enough bool)) {
	callCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callAllTimeout)
	answers := make(chan peerAnswer[T], len(addrs))
	var calls sync.WaitGroup
	for _, addr := range addrs {
		calls.Go(func() {
			a := peerAnswer[T]{from: addr}
			a.err = panics.Do("asking "+addr.String(), func() error {
				return p.Call(callCtx, addr, func(c *client.Client) (err error) {
					a.answer, err = do(callCtx, c)
					return err
				})
			})
			answers <- a
		})
	}
	go func() {
		calls.Wait()
		cancel()
	}()
	for range addrs {
		if receive(<-answers) {
			return
		}
	}
}

// peerError formats an error of another machine. For a status it returns the message alone.
func peerError(addr netip.Addr, err error) string {
	if call := (failedCall{}); errors.As(err, &call) {
		err = call.error
	}
	if s, ok := status.FromError(err); ok {
		return fmt.Sprintf("%s: %s", addr, s.Message())
	}
	return fmt.Sprintf("%s: %v", addr, err)
}

// Others returns the machines to poll: the control-plane machines in the configuration, without
// this machine. On a worker that has joined, the result also contains the control-plane machines
// that stored its ticket. A worker that has not joined polls no machine.
func (p *Peers) Others(c *config.Config) []netip.Addr {
	if c == nil || c.Cluster == nil {
		return nil
	}
	own := p.deps.ownAddresses()
	named := slices.Clone(c.Cluster.Spec.ControlPlanes)
	if c.IsWorker() {
		if member, _ := p.state.Get(); !member.Joined {
			return nil // no peer knows this machine yet
		}
		for _, from := range controlPlanes(c) {
			if a, err := netip.ParseAddr(from); err == nil && !slices.Contains(named, a) {
				named = append(named, a)
			}
		}
	}
	return slices.DeleteFunc(named, func(a netip.Addr) bool { return slices.Contains(own, a) })
}

// peerTimeout bounds each call of firstAnswer.
const peerTimeout = 15 * time.Second

// timeoutFor returns the timeout of the next call. left is the number of machines that are not
// called yet, including the machine of the next call.
func timeoutFor(ctx context.Context, left int) time.Duration {
	if end, ok := ctx.Deadline(); ok && left > 1 {
		return min(peerTimeout, time.Until(end)/time.Duration(left))
	}
	return peerTimeout
}

// firstAnswer calls the machines one after the other until a call succeeds. The timeout of a call
// leaves time for the calls of the machines after it.
func firstAnswer(ctx context.Context, all []string, call func(ctx context.Context, from string) (*api.JoinResponse, error)) (*api.JoinResponse, error) {
	var problems client.Failures
	for i, from := range all {
		callCtx, cancel := context.WithTimeout(ctx, timeoutFor(ctx, len(all)-i))
		answer, err := call(callCtx, from)
		cancel()
		if err == nil {
			return answer, nil
		}
		problems = append(problems, err)
	}
	return nil, problems
}

// answerError is an error status that a machine has returned.
type answerError struct {
	from string
	err  error // a gRPC status
}

func (e answerError) Error() string { return e.from + ": " + status.Convert(e.err).Message() }

func (e answerError) Unwrap() error { return e.err }

// controlPlanes returns the machines that a worker can call, in order: the machines that stored the
// ticket when it was issued, then the other machines of the control plane. If the configuration
// names none of these machines, the result is the host of the cluster's endpoint.
func controlPlanes(c *config.Config) []string {
	var out []string
	if join := c.Machine.Spec.Join; join != nil {
		out = slices.Clone(join.From)
	}
	for _, a := range c.Cluster.Spec.ControlPlanes {
		if !slices.Contains(out, a.String()) {
			out = append(out, a.String())
		}
	}
	if len(out) == 0 {
		out = append(out, c.Cluster.Spec.Endpoint.Host)
	}
	return out
}
