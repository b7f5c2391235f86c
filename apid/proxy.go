package apid

import (
	"context"
	"errors"
	"io"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/panics"
)

// proxy hands calls on to machined, message by message, in both directions at once, without looking
// into them.
type proxy struct {
	backend grpc.ClientConnInterface // for operators and admins
	lookers grpc.ClientConnInterface // for all others
}

// to is the connection for a caller's calls.
func (p *proxy) to(who caller) grpc.ClientConnInterface {
	if who.changes() {
		return p.backend
	}
	return p.lookers
}

// everyCall is the shape of a method that may stream both ways; to HTTP/2 the other shapes are
// cases of it.
var everyCall = grpc.StreamDesc{ServerStreams: true, ClientStreams: true}

// handle is the server's handler for every method of every service that apid does not serve itself.
func (p *proxy) handle(_ any, down grpc.ServerStream) error {
	who, ok := callerOf(down.Context())
	if !ok {
		return status.Error(codes.Internal, "the call did not come through the gate")
	}
	method, _ := grpc.MethodFromServerStream(down)
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(down.Context(), who.metadata()))
	defer cancel()
	up, err := p.to(who).NewStream(ctx, &everyCall, method)
	if err != nil {
		return unavailable(err)
	}
	go func() {
		if err := panics.Do("call "+shown(method), func() error { return forward(up, down) }); err != nil {
			cancel() // the client has gone away: machined must know
		}
	}()
	return unavailable(backward(down, up))
}

// forward copies what the client sends until it has sent everything.
func forward(up grpc.ClientStream, down grpc.ServerStream) error {
	for {
		message := new(frame)
		err := down.RecvMsg(message)
		if errors.Is(err, io.EOF) {
			return up.CloseSend()
		}
		if err != nil {
			return err
		}
		if err := up.SendMsg(message); err != nil {
			// io.EOF: machined has ended the call already; backward sees how.
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// backward copies what machined answers, and returns machined's own status with its details.
func backward(down grpc.ServerStream, up grpc.ClientStream) error {
	defer func() { down.SetTrailer(withoutReserved(up.Trailer())) }()
	header, err := up.Header()
	if err != nil {
		return err
	}
	if err := down.SendHeader(withoutReserved(header)); err != nil {
		return err
	}
	for {
		message := new(frame)
		err := up.RecvMsg(message)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := down.SendMsg(message); err != nil {
			return err
		}
	}
}

// withoutReserved drops what gRPC writes itself.
func withoutReserved(md metadata.MD) metadata.MD {
	out := metadata.MD{}
	for key, values := range md {
		if key != "content-type" && !strings.HasPrefix(key, "grpc-") {
			out[key] = values
		}
	}
	return out
}

// unavailable gives a sentence to the error of a machined that cannot be reached; every other error
// stays as it is.
func unavailable(err error) error {
	if s, ok := status.FromError(err); ok && s.Code() == codes.Unavailable && strings.Contains(s.Message(), "connection error") {
		return status.Error(codes.Unavailable, "machined does not answer on its socket (it may be starting or going down); try again")
	}
	return err
}
