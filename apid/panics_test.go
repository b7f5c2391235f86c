package apid

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/pki"
)

// panicking is a connection to machined on which every forwarded call panics. The requests of apid
// itself get an error.
type panicking struct{ grpc.ClientConnInterface }

func (panicking) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	panic("a fake")
}

func (panicking) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	return status.Error(codes.Unavailable, "a fake")
}

// TestCallPanics checks that a panic in apid fails only the call in which it occurs, and that the
// connection stays usable.
func TestCallPanics(t *testing.T) {
	b := newTestAPI(t)
	panics.OnPanic(func(*panics.Error) {})
	t.Cleanup(func() { panics.OnPanic(nil) })
	server, _ := newServer(newStore(b.dir), slog.New(slog.NewJSONHandler(b.log, nil)), panicking{}, panicking{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- server.Serve(newLimitListener(listener, maxPerAddress, [2]int{8, 8}, 8, ConnectionsPerAddress, ConnectionBurst))
	}()
	t.Cleanup(func() {
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	e := b.endpoint(mustLeaf(t, b.operator, pki.Spec{CN: "alice", O: []string{pki.RoleAdmin}, Usage: pki.Client, TTL: day}))
	e.Address = listener.Addr().String()
	c, err := client.Dial(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 3 {
		if _, err := c.Machine.Version(t.Context(), &api.VersionRequest{}); status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "panic: a fake") {
			t.Errorf("a call that panics: got %v, want Internal and the panic", err)
		}
	}
	if got := len(b.log.lines(t, "call failed", api.Machine_Version_FullMethodName)); got != 3 {
		t.Errorf("the log has %d failed calls, want 3", got)
	}
}
