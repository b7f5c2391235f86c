package api

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/relay"
)

// How a client connects through this machine to another machine of the cluster
// (docs/decisions/0022-relay.md):
//
//  1. The client names the address. This machine connects to the API there and verifies the
//     server's certificate against the machine CA. So clients reach only machines of the cluster,
//     on the port of the API.
//  2. This machine connects a second time and forwards bytes. Through this connection, the client
//     establishes its own TLS connection with its own certificate.

const (
	// maxRelays and maxRelaysPerCaller bound the relayed connections, in total and per caller. A
	// target accepts 32 connections from this machine (apid's maxPerAddress). Each relay needs
	// memory in PID 1 for a message, a streamWindow and a relay.Chunk.
	maxRelays          = 16
	maxRelaysPerCaller = 8
	// relayRate bounds the new relays per second. relayBurst bounds the relays that can start at
	// once after a pause. Each relay opens two connections to the target, which accepts 10 per
	// second from an address, and 50 at once.
	relayRate  = 4
	relayBurst = 20
	// relayDialTimeout bounds the dial, including the wait for the limits.
	relayDialTimeout = 10 * time.Second
	// relayIdleTimeout is the time without data from either side after which a relay ends. A
	// connection in use sends data every 30 s (apid's keepaliveTime).
	relayIdleTimeout = 2 * time.Minute
)

// relays are the limits of relayed connections.
type relays struct {
	// limits per caller, by the lineage of the caller's certificate
	limiter *limits.Limiter
	rate    *rate.Limiter
}

func newRelays() relays {
	return relays{limiter: limits.NewLimiter(maxRelays, maxRelaysPerCaller), rate: rate.NewLimiter(relayRate, relayBurst)}
}

// acquire starts a relay for a caller, and returns the function that ends it.
func (r *relays) acquire(lineage string) (leave func(), err error) {
	leave, _, why := r.limiter.Acquire(lineage)
	switch {
	case errors.Is(why, limits.ErrReached):
		return nil, status.Errorf(codes.ResourceExhausted, "this machine relays at most %d connections at once; try again, or call another machine", maxRelays)
	case errors.Is(why, limits.ErrCallerReached):
		return nil, status.Errorf(codes.ResourceExhausted, "this machine relays at most %d connections of yours at once; name fewer machines", maxRelaysPerCaller)
	}
	return leave, nil
}

func (s machineService) Relay(stream grpc.BidiStreamingServer[api.RelayData, api.RelayData]) error {
	first, err := stream.Recv()
	if err != nil {
		return endOfStream(err)
	}
	target, err := relay.ParseTarget(first.Target)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return s.relays.serve(stream, func(ctx context.Context) (net.Conn, error) {
		e, err := s.deps.PeerEndpoint(netip.AddrPortFrom(target, paths.PortApid).String())
		if err != nil {
			return nil, status.Errorf(codes.FailedPrecondition, "relay refused: %v", err)
		}
		return dialVerified(ctx, e)
	})
}

// serve relays the connection that dial opens, within the limits of its caller.
func (r *relays) serve(stream grpc.BidiStreamingServer[api.RelayData, api.RelayData], dial func(context.Context) (net.Conn, error)) error {
	leave, err := r.acquire(api.CallerFromContext(stream.Context()).Lineage)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(stream.Context(), relayDialTimeout)
	defer cancel()
	if r.rate.Wait(ctx) != nil {
		return status.Error(codes.ResourceExhausted, "this machine has too many connections to open at present; try again")
	}
	conn, err := dial(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&api.RelayData{}); err != nil {
		_ = conn.Close() // the caller has left, and gets no answer
		return endOfStream(err)
	}
	err = relay.Join(stream, conn, relayIdleTimeout)
	if stream.Context().Err() != nil {
		return nil // the caller has disconnected, which is the usual end
	}
	return err
}

// dialVerified connects to a machine that has proved, on another connection, that it belongs to
// this cluster. The error does not reveal which of several reasons applies, because a reader must
// not learn about other hosts in the network.
func dialVerified(ctx context.Context, e client.Endpoint) (net.Conn, error) {
	host, _, err := net.SplitHostPort(e.Address)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	silent := status.Errorf(codes.Unavailable, "no machine answers at %s, port %d", host, paths.PortApid)
	c, err := client.Dial(ctx, e)
	switch {
	case errors.Is(err, client.ErrUntrusted), errors.Is(err, client.ErrRefused):
		return nil, status.Errorf(codes.NotFound, "no machine of this cluster is at %s: the server there has no certificate of the machine CA for this address, or does not trust this machine", host)
	case err != nil:
		return nil, silent
	}
	if err := c.Close(); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", e.Address)
	if err != nil {
		return nil, silent
	}
	return conn, nil
}
