package api

import (
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disk/layout"
)

// MachineDeps are the dependencies of service Machine.
type MachineDeps struct {
	// Release returns the build information of the running image.
	Release func() buildinfo.Release
	// Slot is "A" or "B"; empty if the system runs from memory.
	Slot string
	// BootMedium is the boot medium of a system that is not installed; empty if the system runs
	// from a disk.
	BootMedium string
	// Name returns the name of the machine; empty if it has no configuration.
	Name func() string
	// Topics are the topics of the machine's state.
	Topics []Topic
	// TailEvents passes the events after a cursor to each. If follow is true, it continues with
	// each new event until ctx ends.
	TailEvents func(ctx context.Context, after uint64, follow bool, each func(*api.Event) error) error
	// Reboot, PowerOff and Reset start the shutdown, unless the cluster needs the machine. If the
	// drain policy requires it, the pods are evicted before the shutdown.
	Reboot   func(context.Context, Shutdown) error
	PowerOff func(context.Context, Shutdown) error
	Reset    func(context.Context, Shutdown) error
	// CancelDrain gives up a drain that runs; node is empty for this machine.
	CancelDrain func(node, by string) error
	// WipeDisk erases a disk other than the system disk. WipeVolume erases a volume on such a disk.
	// Both return a description of the result.
	WipeDisk   func(ctx context.Context, name string) (string, error)
	WipeVolume func(ctx context.Context, name string) (string, error)
	// Recovery opens encrypted partitions with recovery keys.
	Recovery Recovery
	// PeerEndpoint returns the endpoint of another machine of the cluster.
	PeerEndpoint func(address string) (client.Endpoint, error)
}

// Shutdown is the request of a caller to shut down.
type Shutdown struct {
	// GracePeriod is the time for the workloads to stop; 0 is the default.
	GracePeriod time.Duration
	Force       bool // shut down even if the cluster needs the machine
	By          string
	Drain       config.Drain // policy of the caller; zero fields: as configured
	Wipe        []string     // labels of the partitions that a reset wipes
}

// Recovery is the access to the encrypted partitions that the machine could not open.
type Recovery interface {
	Locked(ctx context.Context) ([]*api.LockedVolume, error)
	// Recover opens all locked partitions with the recovery keys of the request, and reboots the
	// machine. Each key has the label of another partition.
	Recover(ctx context.Context, r *api.RecoverRequest, by string) error
}

type machineService struct {
	api.UnimplementedMachineServer
	deps   MachineDeps
	debug  Debug
	relays relays
}

func (s machineService) Version(context.Context, *api.VersionRequest) (*api.VersionResponse, error) {
	r := s.deps.Release()
	return &api.VersionResponse{
		Version: r.Version, Kubernetes: r.Kubernetes, Kernel: r.Kernel, Slot: s.deps.Slot, BootMedium: s.deps.BootMedium, Profile: r.Profile,
		Machine: s.deps.Name(), Built: timestamppb.New(time.Unix(r.BuildTime, 0)), Epoch: int64(r.Epoch),
		DebianArchive: stampOrNil(r.Pins.Debian), NewestModule: stampOrNil(r.Pins.Modules),
	}, nil
}

// stampOrNil returns a time in seconds since 1970; nil for 0, an unknown time.
func stampOrNil(seconds int64) *timestamppb.Timestamp {
	if seconds == 0 {
		return nil
	}
	return timestamppb.New(time.Unix(seconds, 0))
}

func (s machineService) Events(r *api.EventsRequest, stream grpc.ServerStreamingServer[api.Event]) error {
	return endOfStream(s.deps.TailEvents(stream.Context(), r.After, r.Follow, stream.Send))
}

// maxGracePeriod bounds the time that a caller can give the workloads to stop at a shutdown.
const maxGracePeriod = 10 * time.Minute

// shutDown starts a shutdown with the grace period of a request.
func shutDown(ctx context.Context, start func(context.Context, Shutdown) error, r *api.PowerRequest) (*api.PowerResponse, error) {
	grace := r.GetGracePeriod().AsDuration()
	if grace < 0 || grace > maxGracePeriod {
		return nil, status.Errorf(codes.InvalidArgument, "grace: %v is not between 0 and %v", grace, maxGracePeriod)
	}
	drain, err := drainPolicy(r.GetDrain())
	if err != nil {
		return nil, err
	}
	return &api.PowerResponse{}, start(ctx, Shutdown{GracePeriod: grace, Force: r.GetForce(), By: caller(ctx), Drain: drain})
}

// The limits of the timeout of a drain, the same as for Machine.spec.upgrade.drain.timeout.
const minDrainTimeout, maxDrainTimeout = time.Second, time.Hour

// drainPolicy returns the policy of a request; a field that is not set is zero.
func drainPolicy(r *api.DrainPolicy) (config.Drain, error) {
	out := config.Drain{Policy: config.DrainPolicy(r.GetPolicy()), Timeout: config.Duration(r.GetTimeout().AsDuration())}
	if names := out.Policy.Names(); out.Policy != "" && !slices.Contains(names, r.Policy) {
		return out, status.Errorf(codes.InvalidArgument, "drain: policy %q is not known; it is %s", r.Policy, strings.Join(names, ", "))
	}
	if t := time.Duration(out.Timeout); t != 0 && (t < minDrainTimeout || t > maxDrainTimeout) {
		return out, status.Errorf(codes.InvalidArgument, "drain: %v is not between %v and %v", t, minDrainTimeout, maxDrainTimeout)
	}
	return out, nil
}

func (s machineService) Reboot(ctx context.Context, r *api.PowerRequest) (*api.PowerResponse, error) {
	return shutDown(ctx, s.deps.Reboot, r)
}

func (s machineService) Shutdown(ctx context.Context, r *api.PowerRequest) (*api.PowerResponse, error) {
	return shutDown(ctx, s.deps.PowerOff, r)
}

func (s machineService) Reset(ctx context.Context, r *api.ResetRequest) (*api.PowerResponse, error) {
	labels, err := wipedPartitions(r.Wipe)
	if err != nil {
		return nil, err
	}
	drain, err := drainPolicy(r.Drain)
	if err != nil {
		return nil, err
	}
	return &api.PowerResponse{}, s.deps.Reset(ctx, Shutdown{Wipe: labels, Force: r.Force, By: caller(ctx), Drain: drain})
}

func (s machineService) CancelDrain(ctx context.Context, r *api.CancelDrainRequest) (*api.CancelDrainResponse, error) {
	return &api.CancelDrainResponse{}, s.deps.CancelDrain(r.Node, caller(ctx))
}

func (s machineService) WipeDisk(ctx context.Context, r *api.WipeDiskRequest) (*api.WipeDiskResponse, error) {
	wipe, name := s.deps.WipeDisk, r.Disk
	if r.Volume != "" {
		wipe, name = s.deps.WipeVolume, r.Volume
	}
	if (r.Disk == "") == (r.Volume == "") {
		return nil, status.Error(codes.InvalidArgument, "wipe: name either a disk or a volume")
	}
	done, err := wipe(ctx, name)
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return &api.WipeDiskResponse{Done: done}, nil
}

func (s machineService) GetRecovery(ctx context.Context, _ *api.GetRecoveryRequest) (*api.GetRecoveryResponse, error) {
	locked, err := s.deps.Recovery.Locked(ctx)
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return &api.GetRecoveryResponse{Volumes: locked}, nil
}

func (s machineService) Recover(ctx context.Context, r *api.RecoverRequest) (*api.RecoverResponse, error) {
	labels := map[string]bool{}
	for _, k := range r.Keys {
		if k.Label == "" || labels[k.Label] {
			return nil, status.Error(codes.InvalidArgument, "keys: each with the label of another partition expected")
		}
		labels[k.Label] = true
	}
	if err := s.deps.Recovery.Recover(ctx, r, caller(ctx)); err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return &api.RecoverResponse{}, nil
}

// wipedPartitions returns the labels of the partitions that a reset wipes.
func wipedPartitions(wipe api.ResetRequest_Wipe) ([]string, error) {
	switch wipe {
	case api.ResetRequest_WIPE_UNSPECIFIED, api.ResetRequest_WIPE_STATE:
		return []string{layout.State}, nil
	case api.ResetRequest_WIPE_DATA:
		return []string{layout.Data}, nil
	case api.ResetRequest_WIPE_ALL:
		return []string{layout.Data, layout.State}, nil
	}
	return nil, status.Errorf(codes.InvalidArgument, "reset: unknown wipe mode %v", wipe)
}

func (s machineService) ReadFile(r *api.ReadFileRequest, stream grpc.ServerStreamingServer[api.ReadFileResponse]) error {
	return s.debug.ReadFile(stream.Context(), r.Path, r.Offset, api.CallerFromContext(stream.Context()).IsAdmin(), stream.Send)
}

func (s machineService) ListFiles(ctx context.Context, r *api.ListFilesRequest) (*api.ListFilesResponse, error) {
	return s.debug.ListFiles(ctx, r.Path, api.CallerFromContext(ctx).IsAdmin())
}
