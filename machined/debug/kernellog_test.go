package debug

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
)

// TestStoredKernelLog checks that a stored log cannot be followed, and that only one can be
// requested.
func TestStoredKernelLog(t *testing.T) {
	a := New(Deps{})
	for _, r := range []*api.KernelLogRequest{{PreviousBoot: true, Follow: true}, {Crash: true, Follow: true}, {PreviousBoot: true, Crash: true}} {
		if err := a.StoredKernelLog(r, nil); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v: %v", r, err)
		}
	}
}

// TestEndKernelLog checks that the shutdown waits for the end of the log, but not forever.
func TestEndKernelLog(t *testing.T) {
	m := New(Deps{})
	m.EndKernelLog(t.Context()) // there is none
	ctx, stop := context.WithCancel(t.Context())
	k := &logWriter{stop: stop, ended: make(chan struct{})}
	m.kernelLog.Store(k)
	late, leave := context.WithCancel(t.Context())
	leave()
	m.EndKernelLog(late)
	if ctx.Err() == nil {
		t.Error("it was not told to end")
	}
	close(k.ended)
	m.EndKernelLog(t.Context())
}
