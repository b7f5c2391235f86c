package relay

import (
	"context"
	"errors"
	"io"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/orlop-os/orlop/pkg/panics"
)

// Bidirectional is the description of a method that may stream both ways; to HTTP/2 the other kinds
// of methods are special cases of it.
var Bidirectional = grpc.StreamDesc{ServerStreams: true, ClientStreams: true}

// CopyCall forwards the messages of a call to a server, and its answer, until the call ends. Both
// sides use NewCodec. cancel ends the call to the server; name is the name of the call in reports
// of panics.
func CopyCall(name string, down grpc.ServerStream, up grpc.ClientStream, cancel context.CancelFunc) error {
	go func() {
		if err := panics.Do(name, func() error { return forward(up, down) }); err != nil {
			cancel() // the client disconnected: the server must know
		}
	}()
	return backward(down, up)
}

// forward copies messages from the client until its stream ends.
func forward(up grpc.ClientStream, down grpc.ServerStream) error {
	for {
		message := new(Frame)
		err := down.RecvMsg(message)
		if errors.Is(err, io.EOF) {
			return up.CloseSend()
		}
		if err != nil {
			return err
		}
		if err := up.SendMsg(message); err != nil {
			// io.EOF: the server has already ended the call; backward receives the status.
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// backward copies the messages of the server, and returns its own status with its details.
func backward(down grpc.ServerStream, up grpc.ClientStream) error {
	defer func() { down.SetTrailer(WithoutReserved(up.Trailer())) }()
	header, err := up.Header()
	if err != nil {
		return err
	}
	if err := down.SendHeader(WithoutReserved(header)); err != nil {
		return err
	}
	for {
		message := new(Frame)
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

// WithoutReserved returns the headers without those that gRPC writes itself.
func WithoutReserved(md metadata.MD) metadata.MD {
	out := metadata.MD{}
	for key, values := range md {
		if key != "content-type" && !strings.HasPrefix(key, "grpc-") {
			out[key] = values
		}
	}
	return out
}
