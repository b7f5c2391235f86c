package images

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/supervise"
)

// TestCheckContainerd checks the error of an operation that needs containerd, by the phase of its
// service; "" if the service does not exist.
func TestCheckContainerd(t *testing.T) {
	for state, want := range map[supervise.Phase]codes.Code{supervise.Running: codes.OK, "": codes.FailedPrecondition, supervise.Starting: codes.Unavailable} {
		if err := CheckContainerd(state); status.Code(err) != want {
			t.Errorf("%q: %v, want %v", state, err, want)
		}
	}
}
