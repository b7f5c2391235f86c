package client

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
)

// methodNames selects the method names for the calls on a connection. A machine of a former version
// does not know the present name of a renamed method. The machine rejects a call with this name
// before any work, so the client can repeat the call with the former name (api.FormerName).
type methodNames struct {
	former atomic.Bool // the machine knows the former names
}

// order returns the names of a method in the order of the attempts. second is empty if the method
// was never renamed.
func (n *methodNames) order(method string) (first, second string) {
	former := api.FormerName(method)
	if former != "" && n.former.Load() {
		return former, method
	}
	return method, former
}

// IsUnknownMethod reports whether err means that the machine has no method with the name in the
// call.
func IsUnknownMethod(err error) bool {
	s, ok := status.FromError(err)
	return ok && s.Code() == codes.PermissionDenied && strings.Contains(s.Message(), api.UnknownMethod)
}

func (n *methodNames) unary(ctx context.Context, method string, request, answer any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	first, second := n.order(method)
	err := invoke(ctx, first, request, answer, conn, options...)
	if second == "" || !IsUnknownMethod(err) {
		return err
	}
	err = invoke(ctx, second, request, answer, conn, options...)
	if !IsUnknownMethod(err) {
		n.former.Store(second != method)
	}
	return err
}

// stream opens a stream, and repeats the call with the second name if its first name is unknown. It
// can repeat only calls with a single request. A call with several requests always follows a unary
// call on the same connection, and methodNames then already knows the right name.
func (n *methodNames) stream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
	first, second := n.order(method)
	s, err := open(ctx, desc, conn, first, options...)
	if err != nil || second == "" || desc.ClientStreams {
		return s, err
	}
	return &repeatable{ClientStream: s, again: func() (grpc.ClientStream, error) { return open(ctx, desc, conn, second, options...) }}, nil
}

// repeatable is the stream of a call with a single request. It repeats the call with the other name
// if the machine does not know the method.
type repeatable struct {
	grpc.ClientStream
	request any
	again   func() (grpc.ClientStream, error) // opens the second stream; nil after the first answer
}

// SendMsg implements grpc.ClientStream.
func (s *repeatable) SendMsg(request any) error {
	s.request = request
	return s.ClientStream.SendMsg(request)
}

// RecvMsg implements grpc.ClientStream.
func (s *repeatable) RecvMsg(answer any) error {
	again := s.again
	s.again = nil
	err := s.ClientStream.RecvMsg(answer)
	if again == nil || !IsUnknownMethod(err) {
		return err
	}
	repeated, err := again()
	if err != nil {
		return err
	}
	s.ClientStream = repeated
	// io.EOF means that the call has ended; RecvMsg returns the reason.
	if err := s.ClientStream.SendMsg(s.request); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := s.ClientStream.CloseSend(); err != nil {
		return err
	}
	return s.ClientStream.RecvMsg(answer)
}
