package images

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/supervise"
)

// CheckContainerd rejects calls that need containerd while containerd does not run. state is the
// state of its service; empty if the machine does not have the service. The errors are gRPC
// statuses.
func CheckContainerd(state supervise.Phase) error {
	switch state {
	case supervise.Running:
		return nil
	case "":
		return status.Error(codes.FailedPrecondition, "images: containerd does not run before the machine has a configuration with a Cluster document; apply one")
	}
	return status.Errorf(codes.Unavailable, "images: containerd is %s; wait for `orlopctl services` to show it running", state)
}
