package client

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/orlop-os/orlop/pkg/pki"
)

// beforeCall calls Endpoint.BeforeCall for the first request of each call on a connection.
type beforeCall struct {
	// do may be nil
	do     func(ctx context.Context, c *Client, method string, request proto.Message) error
	client *Client
}

func (b *beforeCall) check(ctx context.Context, method string, request any) error {
	m, ok := request.(proto.Message)
	if b.do == nil || !ok {
		return nil
	}
	return b.do(ctx, b.client, method, m)
}

func (b *beforeCall) unary(ctx context.Context, method string, request, answer any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	if err := b.check(ctx, method, request); err != nil {
		return err
	}
	return invoke(ctx, method, request, answer, conn, options...)
}

func (b *beforeCall) stream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, conn, method, options...)
	if err != nil || b.do == nil {
		return s, err
	}
	return &checkedStream{ClientStream: s, check: func(request any) error { return b.check(ctx, method, request) }}, nil
}

// checkedStream is a stream with a check of its first request. One goroutine sends the requests.
type checkedStream struct {
	grpc.ClientStream
	check func(request any) error // nil after the first request
}

// SendMsg implements grpc.ClientStream.
func (s *checkedStream) SendMsg(request any) error {
	if check := s.check; check != nil {
		s.check = nil
		if err := check(request); err != nil {
			return err
		}
	}
	return s.ClientStream.SendMsg(request)
}

// Key returns the fingerprint of the key of the machine; empty for a client of Over.
func (c *Client) Key() string {
	if c.watch == nil {
		return ""
	}
	if cert := c.watch.peer.Load(); cert != nil {
		return pki.Fingerprint(cert)
	}
	return ""
}
