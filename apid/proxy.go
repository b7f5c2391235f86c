package apid

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/relay"
)

// proxy forwards the messages of calls to machined and back, in both directions at once, without
// decoding them.
type proxy struct {
	backend  grpc.ClientConnInterface // for operators and admins
	readOnly grpc.ClientConnInterface // for all other callers
}

// The method to returns the connection to machined for the calls of a caller.
func (p *proxy) to(c caller) grpc.ClientConnInterface {
	if c.changes() {
		return p.backend
	}
	return p.readOnly
}

// handle handles every method that apid does not serve itself.
func (p *proxy) handle(_ any, down grpc.ServerStream) error {
	c, ok := callerOf(down.Context())
	if !ok {
		return status.Error(codes.Internal, "the call did not pass the interceptor")
	}
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(down.Context(), c.metadata()))
	defer cancel()
	up, err := p.to(c).NewStream(ctx, &relay.Bidirectional, c.method)
	if err != nil {
		return unavailable(err)
	}
	return unavailable(relay.CopyCall("call "+sanitized(c.method), down, up, cancel))
}

// unavailable replaces the error of a call that cannot reach machined by an explanation. It returns
// every other error unchanged.
func unavailable(err error) error {
	if s, ok := status.FromError(err); ok && s.Code() == codes.Unavailable && strings.Contains(s.Message(), "connection error") {
		return status.Error(codes.Unavailable, "machined does not answer on its socket (it may be starting or shutting down); try again")
	}
	return err
}
