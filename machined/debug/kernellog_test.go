package debug

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
)

// TestStoredKernelLog checks that a stored log cannot be followed, and that a request for two
// stored logs is rejected.
func TestStoredKernelLog(t *testing.T) {
	a := New(Deps{})
	for _, r := range []*api.KernelLogRequest{{PreviousBoot: true, Follow: true}, {Crash: true, Follow: true}, {PreviousBoot: true, Crash: true}} {
		if err := a.StoredKernelLog(r, nil); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v: %v", r, err)
		}
	}
}

// TestEndKernelLog checks that EndKernelLog stops the log and waits for its end, but not longer
// than its context permits.
func TestEndKernelLog(t *testing.T) {
	m := New(Deps{})
	m.EndKernelLog(t.Context()) // no log is written
	ctx, stop := context.WithCancel(t.Context())
	k := &logWriter{stop: stop, ended: make(chan struct{})}
	m.kernelLog.Store(k)
	late, leave := context.WithCancel(t.Context())
	leave()
	m.EndKernelLog(late)
	if ctx.Err() == nil {
		t.Error("EndKernelLog does not stop the log")
	}
	close(k.ended)
	m.EndKernelLog(t.Context())
}
