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

// Bidirectional describes a method of any kind for a proxy. In HTTP/2, unary and one-way streaming
// calls are special cases of a bidirectional stream.
var Bidirectional = grpc.StreamDesc{ServerStreams: true, ClientStreams: true}

// CopyCall connects two calls: `down` is the call of the client, and `up` is the call to the
// server. It forwards the messages of the client to the server, and the messages of the server to
// the client. It returns the status of the server when the call ends. Both calls must use NewCodec.
// cancel ends the call to the server. name is the name of the call in the record of a panic.
func CopyCall(name string, down grpc.ServerStream, up grpc.ClientStream, cancel context.CancelFunc) error {
	go func() {
		if err := panics.Do(name, func() error { return forward(up, down) }); err != nil {
			cancel() // the client has disconnected, so the call to the server must end
		}
	}()
	return backward(down, up)
}

// forward copies messages from the client to the server, until the client ends its stream.
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
			// io.EOF means that the server has ended the call; backward gets the status.
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// backward copies header, messages and trailer from the server to the client. It returns the status
// of the server, with the details.
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

// WithoutReserved returns the headers except those that gRPC itself sets.
func WithoutReserved(md metadata.MD) metadata.MD {
	out := metadata.MD{}
	for key, values := range md {
		if key != "content-type" && !strings.HasPrefix(key, "grpc-") {
			out[key] = values
		}
	}
	return out
}
