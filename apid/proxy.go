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

// proxy forwards calls to machined, message by message, in both directions at once, without
// decoding them.
type proxy struct {
	backend  grpc.ClientConnInterface // for operators and admins
	readOnly grpc.ClientConnInterface // for all other callers
}

// to returns the connection for the calls of a caller.
func (p *proxy) to(c caller) grpc.ClientConnInterface {
	if c.changes() {
		return p.backend
	}
	return p.readOnly
}

// bidirectional is the description of a method that may stream both ways; to HTTP/2 the other kinds
// of methods are special cases of it.
var bidirectional = grpc.StreamDesc{ServerStreams: true, ClientStreams: true}

// handle is the server's handler for every method of every service that apid does not serve itself.
func (p *proxy) handle(_ any, down grpc.ServerStream) error {
	c, ok := callerOf(down.Context())
	if !ok {
		return status.Error(codes.Internal, "the call did not pass the interceptor")
	}
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(down.Context(), c.metadata()))
	defer cancel()
	up, err := p.to(c).NewStream(ctx, &bidirectional, c.method)
	if err != nil {
		return unavailable(err)
	}
	go func() {
		if err := panics.Do("call "+sanitized(c.method), func() error { return forward(up, down) }); err != nil {
			cancel() // the client disconnected: machined must know
		}
	}()
	return unavailable(backward(down, up))
}

// forward copies messages from the client until its stream ends.
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
			// io.EOF: machined has already ended the call; backward receives the status.
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// backward copies machined's messages, and returns machined's own status with its details.
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

// withoutReserved drops the headers that gRPC writes itself.
func withoutReserved(md metadata.MD) metadata.MD {
	out := metadata.MD{}
	for key, values := range md {
		if key != "content-type" && !strings.HasPrefix(key, "grpc-") {
			out[key] = values
		}
	}
	return out
}

// unavailable adds an explanation to the error of an unreachable machined; it returns every other
// error unchanged.
func unavailable(err error) error {
	if s, ok := status.FromError(err); ok && s.Code() == codes.Unavailable && strings.Contains(s.Message(), "connection error") {
		return status.Error(codes.Unavailable, "machined does not answer on its socket (it may be starting or shutting down); try again")
	}
	return err
}
