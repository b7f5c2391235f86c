package api

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/pki"
)

// ObjectAuthor is the caller of service MachineObject: the subject in the audit log, and the author
// in events and in the turn of the control plane (package disruption).
const ObjectAuthor = "machine object"

// ObjectDeps are the dependencies of service MachineObject.
type ObjectDeps struct {
	// Enabled reports whether the configuration enables the objects of machines.
	Enabled func() bool
	// Release returns the build information of the running image.
	Release func() buildinfo.Release
	// Object holds the machine object as the node read it last; nil if there is none.
	Object *cell.Cell[*api.ReportedObject]
	// Upgrade is the state of the last upgrade.
	Upgrade cell.View[*api.UpgradeStatus]
	// Drain is the last drain of the machine's node; nil if there is none.
	Drain cell.View[*api.Drain]
	// WatchHealth calls each with the health, now and after each change, until each returns false.
	WatchHealth func(ctx context.Context, each func(*api.HealthResponse) (more bool, err error)) error
	// ChangeRelease starts the change to another version (package upgrade of machined). The errors
	// are gRPC statuses.
	ChangeRelease func(ctx context.Context, r *api.ChangeReleaseRequest, by string) error
	// Repair starts a step of a repair. The errors are gRPC statuses.
	Repair func(ctx context.Context, step, by string) error
}

// objectService serves the machine's own object of Kubernetes. Its callers are processes of root on
// this machine: the socket admits no others.
type objectService struct {
	api.UnimplementedMachineObjectServer
	deps ObjectDeps
}

// NewObjectServer returns the server of MachineObject, and of no other service. Each call has the
// author ObjectAuthor, whatever its metadata claims.
func NewObjectServer(d ObjectDeps, g Interceptor) *grpc.Server {
	g.Audited = func(method string) bool {
		return method == api.MachineObject_ChangeRelease_FullMethodName || method == api.MachineObject_Repair_FullMethodName
	}
	g.caller = &api.Caller{Subject: ObjectAuthor, Role: pki.RoleAdmin[len(pki.RolePrefix):]}
	s := newServer(g)
	api.RegisterMachineObjectServer(s, objectService{deps: d})
	return s
}

// checkEnabled rejects a call if the configuration does not enable the objects of machines.
func (s objectService) checkEnabled() error {
	if !s.deps.Enabled() {
		return status.Error(codes.FailedPrecondition, "the configuration of this machine does not enable Cluster.spec.kubernetes.machineObjects")
	}
	return nil
}

// ChangeRelease implements api.MachineObjectServer.
func (s objectService) ChangeRelease(ctx context.Context, r *api.ChangeReleaseRequest) (*api.ChangeReleaseResponse, error) {
	if err := s.checkEnabled(); err != nil {
		return nil, err
	}
	if r.Version == "" {
		return nil, status.Error(codes.InvalidArgument, "the request names no version")
	}
	if err := s.deps.ChangeRelease(ctx, r, caller(ctx)); err != nil {
		return nil, err
	}
	return &api.ChangeReleaseResponse{}, nil
}

// Repair implements api.MachineObjectServer.
func (s objectService) Repair(ctx context.Context, r *api.RepairRequest) (*api.RepairResponse, error) {
	if err := s.checkEnabled(); err != nil {
		return nil, err
	}
	if err := s.deps.Repair(ctx, r.Step, caller(ctx)); err != nil {
		return nil, err
	}
	return &api.RepairResponse{}, nil
}

// Report implements api.MachineObjectServer.
func (s objectService) Report(_ context.Context, r *api.ReportObjectRequest) (*api.ReportObjectResponse, error) {
	if err := s.checkEnabled(); err != nil {
		return nil, err
	}
	s.deps.Object.Set(r.Object)
	return &api.ReportObjectResponse{}, nil
}

// Watch implements api.MachineObjectServer.
func (s objectService) Watch(_ *api.WatchObjectRequest, stream grpc.ServerStreamingServer[api.ObjectState]) error {
	if err := s.checkEnabled(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	problem := cell.New[*string](nil) // nil: not known yet
	go func() {
		cancel(panics.Do("health for the machine object", func() error { return s.deps.WatchHealth(ctx, setProblem(problem)) }))
	}()
	health, upgrade, drain := problem.Watch(), s.deps.Upgrade.Watch(), s.deps.Drain.Watch()
	for last := (*api.ObjectState)(nil); ; {
		first := health.Current()
		if state := s.state(upgrade.Current(), drain.Current(), first); first != nil && !proto.Equal(state, last) {
			if err := stream.Send(state); err != nil {
				return err
			}
			last = state
		}
		select {
		case <-health.Changed():
		case <-upgrade.Changed():
		case <-drain.Changed():
		case <-ctx.Done():
			return endOfStream(context.Cause(ctx))
		}
	}
}

// state returns the state of the machine, without the progress in bytes: during a transfer, the
// progress would change the state every second.
func (s objectService) state(upgrade *api.UpgradeStatus, drain *api.Drain, problem *string) *api.ObjectState {
	r := s.deps.Release()
	out := &api.ObjectState{Version: r.Version, Kubernetes: r.Kubernetes, Drain: drain}
	if out.Upgrade, _ = proto.Clone(upgrade).(*api.UpgradeStatus); out.Upgrade != nil {
		out.Upgrade.Done, out.Upgrade.Total = 0, 0
	}
	if problem != nil {
		out.Problem = *problem
	}
	return out
}

// setProblem returns a function that stores the first problem of the health in a cell.
func setProblem(problem *cell.Cell[*string]) func(*api.HealthResponse) (more bool, err error) {
	return func(h *api.HealthResponse) (more bool, err error) {
		now := firstProblem(h)
		problem.Set(&now)
		return true, nil
	}
}

// firstProblem returns the first failed check of the health; empty if all have passed.
func firstProblem(h *api.HealthResponse) string {
	for _, c := range h.Checks {
		if !c.Ok {
			return c.Name + ": " + c.Detail
		}
	}
	return ""
}
