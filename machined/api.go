package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	machinedapi "github.com/orlop-os/orlop/machined/api"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/machined/transition"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/callerid"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disklayout"
	"github.com/orlop-os/orlop/pkg/reconcile"
)

// The methods of the API: each calls the responsible code and translates its error. apid has
// authorized the call before; only root and apid can connect to the socket.

// register registers the services on the server.
func (m *machine) register(s *grpc.Server) {
	api.RegisterMachineServer(s, machineAPI{m: m})
	api.RegisterConfigServer(s, configAPI{m: m})
	api.RegisterUpgradeServer(s, upgradeAPI{m: m})
	api.RegisterAuditServer(s, auditAPI{m: m})
	m.api.Register(s)
}

// caller returns the caller of a call, for events.
func caller(ctx context.Context) string { return callerid.FromContext(ctx).String() }

type machineAPI struct {
	api.UnimplementedMachineServer
	m *machine
}

func (a machineAPI) Version(context.Context, *api.VersionRequest) (*api.VersionResponse, error) {
	r := a.m.release
	return &api.VersionResponse{
		Version: r.Version, Kubernetes: r.Kubernetes, Kernel: r.Kernel, Slot: a.m.slot, BootMedium: a.m.bootMedium, Profile: r.Profile,
		Machine: a.m.name(), Built: timestamppb.New(time.Unix(r.BuildTime, 0)), Epoch: int64(r.Epoch),
	}, nil
}

func (a machineAPI) Get(ctx context.Context, r *api.GetRequest) (*api.TopicValue, error) {
	if r.Topic == "" {
		return &api.TopicValue{Topics: a.m.topicNames()}, nil
	}
	t, err := a.m.topic(r.Topic)
	if err != nil {
		return nil, err
	}
	return snapshot(ctx, t)
}

func (a machineAPI) Watch(r *api.GetRequest, stream grpc.ServerStreamingServer[api.TopicValue]) error {
	t, err := a.m.topic(r.Topic)
	if err != nil {
		return err
	}
	for {
		s, err := snapshot(stream.Context(), t)
		if err != nil {
			return err
		}
		if err := stream.Send(s); err != nil {
			return err
		}
		if err := t.next(stream.Context(), s.Revision); err != nil {
			return status.FromContextError(err).Err()
		}
	}
}

func (m *machine) topicNames() []string {
	var names []string
	for _, t := range m.topics {
		names = append(names, t.name)
	}
	return names
}

func (m *machine) topic(name string) (topic, error) {
	for _, t := range m.topics {
		if t.name == name {
			return t, nil
		}
	}
	return topic{}, status.Errorf(codes.NotFound, "state: topic %q does not exist; topics: %s", name, strings.Join(m.topicNames(), ", "))
}

func snapshot(ctx context.Context, t topic) (*api.TopicValue, error) {
	v, rev, err := t.get(ctx)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "state: cannot read topic %s: %v", t.name, err)
	}
	value, err := toValue(v)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "state: topic %s: %v", t.name, err)
	}
	return &api.TopicValue{Topic: t.name, Revision: rev, Value: value}, nil
}

func (a machineAPI) Events(r *api.EventsRequest, stream grpc.ServerStreamingServer[api.Event]) error {
	err := a.m.events.tail(stream.Context(), r.After, r.Follow, func(e event) error {
		return stream.Send(&api.Event{Cursor: e.cursor, Time: timestamppb.New(e.time), Source: e.source, Kind: e.kind, Message: e.message})
	})
	return endOfStream(err)
}

func (a machineAPI) ReadFile(r *api.ReadFileRequest, stream grpc.ServerStreamingServer[api.ReadFileResponse]) error {
	return a.m.debug.ReadFile(stream.Context(), r.Path, r.Offset, callerid.FromContext(stream.Context()).IsAdmin(), stream.Send)
}

func (a machineAPI) ListFiles(ctx context.Context, r *api.ListFilesRequest) (*api.ListFilesResponse, error) {
	return a.m.debug.ListFiles(ctx, r.Path, callerid.FromContext(ctx).IsAdmin())
}

// maxGracePeriod bounds the time that a caller can give the workloads to stop at a shutdown.
const maxGracePeriod = 10 * time.Minute

func (a machineAPI) power(ctx context.Context, to power.Mode, r *api.PowerRequest) (*api.PowerResponse, error) {
	grace := r.GetGracePeriod().AsDuration()
	if grace < 0 || grace > maxGracePeriod {
		return nil, status.Errorf(codes.InvalidArgument, "grace: %v is not between 0 and %v", grace, maxGracePeriod)
	}
	return &api.PowerResponse{}, a.m.shutDown(powerRequest{to: to, gracePeriod: grace, why: "asked by " + caller(ctx)})
}

func (a machineAPI) Reboot(ctx context.Context, r *api.PowerRequest) (*api.PowerResponse, error) {
	return a.power(ctx, power.Reboot, r)
}

func (a machineAPI) Shutdown(ctx context.Context, r *api.PowerRequest) (*api.PowerResponse, error) {
	return a.power(ctx, power.PowerOff, r)
}

func (a machineAPI) Reset(ctx context.Context, r *api.ResetRequest) (*api.PowerResponse, error) {
	if a.m.bootMedium != "" {
		return nil, status.Error(codes.FailedPrecondition, "reset refused: "+notInstalled)
	}
	if err := a.m.checkRunning(); err != nil {
		return nil, err
	}
	down := powerRequest{to: power.Reboot, why: "reset by " + caller(ctx)}
	switch r.Wipe {
	case api.ResetRequest_WIPE_UNSPECIFIED, api.ResetRequest_WIPE_STATE:
		down.wipe = []string{disklayout.State}
	case api.ResetRequest_WIPE_DATA:
		down.wipe = []string{disklayout.Data}
	case api.ResetRequest_WIPE_ALL:
		down.wipe = []string{disklayout.Data, disklayout.State}
	default:
		return nil, status.Errorf(codes.InvalidArgument, "reset: unknown wipe mode %v", r.Wipe)
	}
	if err := a.m.upgrade.Drainer.Drain(); err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "reset refused: %v", err)
	}
	may := a.m.etcd.CheckQuorumWithout
	if slices.Contains(down.wipe, disklayout.Data) {
		may = func() error { return a.m.etcd.Leave(caller(ctx)) }
	}
	if err := may(); err != nil {
		a.m.upgrade.Drainer.Uncordon()
		return nil, status.Errorf(codes.FailedPrecondition, "reset refused: %v", err)
	}
	return &api.PowerResponse{}, a.m.shutDown(down)
}

type configAPI struct {
	api.UnimplementedConfigServer
	m *machine
}

// maxDocuments is the maximum size of a configuration, in bytes.
const maxDocuments = 1 << 20

func (a configAPI) Apply(ctx context.Context, r *api.ApplyRequest) (*api.ApplyResponse, error) {
	if len(r.Documents) > maxDocuments {
		return nil, status.Errorf(codes.InvalidArgument, "configuration: %d bytes exceed the limit of %d", len(r.Documents), maxDocuments)
	}
	name := r.Filename
	if name == "" {
		name = "-"
	}
	before, _ := a.m.config.Get()
	done, err := a.m.apply(ctx, name, r)
	var problems config.Problems
	switch {
	case errors.As(err, &problems):
		return nil, rejection(problems)
	case err != nil:
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	if r.Mode == api.ApplyRequest_MODE_DRY_RUN {
		setUnchanged(ctx)
	}
	out := &api.ApplyResponse{Operations: done.operations, Restarts: done.restarts, Reboot: done.reboot, Install: done.install, Warnings: done.warnings}
	switch {
	// Confirm returns the failures: this connection may be cut off later
	case !done.trial.IsZero():
		out.TrialDeadline, out.TrialDuration = timestamppb.New(done.trial), durationpb.New(time.Until(done.trial))
		for _, address := range transition.StaticAddresses(done.config) {
			out.Addresses = append(out.Addresses, address.String())
		}
	case done.config != nil:
		out.Failures = a.m.awaitConverged(ctx, done.config, nodeplan.Network(before.config))
		out.Operations = reconcile.Done(out.Operations, out.Failures)
	}
	return out, nil
}

// rejection is the status of a rejected configuration: the text for operators, and each problem as
// a detail for tools.
func rejection(problems config.Problems) error {
	s := status.New(codes.InvalidArgument, transition.Refused+"\n"+problems.Error())
	for _, p := range problems {
		d := &api.Problem{File: p.File, Line: int32(p.Line), Field: p.Field, Reason: p.Reason, Expected: p.Expected, Hint: p.Hint}
		if next, err := s.WithDetails(d); err == nil {
			s = next
		}
	}
	return s.Err()
}

// endOfStream is the status of a stream that the caller ended.
func endOfStream(err error) error { return machinedapi.EndOfStream(err) }
