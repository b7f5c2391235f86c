package main

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

	"github.com/orlop-os/orlop/apid"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/relay"
)

// How a caller comes through this machine to another one of the cluster
// (docs/decisions/0022-relay.md):
//
//  1. He names its address. This machine connects to the door there and verifies its certificate by the cluster's machine CA, so that
//     callers reach machines of the cluster, on the port of the API, and nothing else.
//  2. It connects once more, and passes on bytes. In them the caller makes his own connection, with his own certificate.

const (
	// mostRelays and mostRelaysOfOne are how many connections are passed on at once, in all and of
	// one caller. Another machine takes 32 of this one (apid's maxPerAddress), and each takes a
	// message, a streamWindow and a relay.Chunk of PID 1's memory.
	mostRelays      = 16
	mostRelaysOfOne = 8
	// relayPace and relaysAtOnce are how many are begun in a second, and after a pause. Each is two
	// connections to the same machine, which takes 10 a second from one address, and 50 at once.
	relayPace    = 4
	relaysAtOnce = 20
	// relayDial bounds reaching the other machine, the wait for a turn included.
	relayDial = 10 * time.Second
	// relayIdle is how long nothing may come from either side. A connection that is in use brings
	// something every 30 s (apid's keepaliveTime).
	relayIdle = 2 * time.Minute
)

// relays are the connections that are passed on.
type relays struct {
	// by the serial number of the certificate that each caller's was renewed from in the first
	// place
	places *places
	pace   *rate.Limiter
}

func newRelays() relays {
	return relays{places: newPlaces(mostRelays, mostRelaysOfOne), pace: rate.NewLimiter(relayPace, relaysAtOnce)}
}

// enter takes a place for a caller, and returns what gives it back.
func (r *relays) enter(who string) (leave func(), err error) {
	leave, _, why := r.places.take(who)
	switch {
	case errors.Is(why, errAllTaken):
		return nil, status.Errorf(codes.ResourceExhausted, "this machine passes on %d connections, and no more at once; try again, or call another machine", mostRelays)
	case errors.Is(why, errOwnTaken):
		return nil, status.Errorf(codes.ResourceExhausted, "this machine passes on %d connections of yours, and no more at once; name fewer machines", mostRelaysOfOne)
	}
	return leave, nil
}

func (a machineAPI) Relay(stream grpc.BidiStreamingServer[api.RelayData, api.RelayData]) error {
	first, err := stream.Recv()
	if err != nil {
		return endOfStream(err)
	}
	target, err := relay.ParseTarget(first.Target)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return a.m.relays.serve(stream, func(ctx context.Context) (net.Conn, error) {
		e, err := a.m.peerAt(netip.AddrPortFrom(target, apidPort).String())
		if err != nil {
			return nil, status.Errorf(codes.FailedPrecondition, "relay refused: %v", err)
		}
		return reach(ctx, e)
	})
}

// serve passes on the connection that dial opens, as long as there is a place for its caller.
func (r *relays) serve(stream grpc.BidiStreamingServer[api.RelayData, api.RelayData], dial func(context.Context) (net.Conn, error)) error {
	leave, err := r.enter(said(stream.Context(), apid.MetadataLineage))
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(stream.Context(), relayDial)
	defer cancel()
	if r.pace.Wait(ctx) != nil {
		return status.Error(codes.ResourceExhausted, "this machine has too many connections to open at present; try again")
	}
	conn, err := dial(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&api.RelayData{}); err != nil {
		return errors.Join(err, conn.Close())
	}
	err = relay.Join(stream, conn, relayIdle)
	if stream.Context().Err() != nil {
		return nil // the caller has left, which is how it ends
	}
	return err
}

// reach opens a connection to a machine that has shown before, on another one, that it is of this
// cluster. Which of several reasons there is not to is not told: what the network holds beside
// machines is not for every reader.
func reach(ctx context.Context, e client.Endpoint) (net.Conn, error) {
	host, _, err := net.SplitHostPort(e.Address)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	silent := status.Errorf(codes.Unavailable, "nothing answers at %s, port %d, as a machine would", host, apidPort)
	c, err := client.Dial(ctx, e)
	switch {
	case errors.Is(err, client.ErrUntrusted), errors.Is(err, client.ErrRefused):
		return nil, status.Errorf(codes.NotFound, "no machine of this cluster is at %s: what answers there has no certificate of the cluster's machine CA with this address, or does not know this machine", host)
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
