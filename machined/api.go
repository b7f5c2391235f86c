package main

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	machinedapi "github.com/orlop-os/orlop/machined/api"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/transition"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/callerid"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/reconcile"
)

// The methods of the API: each calls the responsible code and translates its error. apid has
// authorized the call before; only root and apid can connect to the socket.

// register registers the services on the server.
func (m *machine) register(s *grpc.Server) {
	api.RegisterConfigServer(s, configAPI{m: m})
	api.RegisterUpgradeServer(s, upgradeAPI{m: m})
	api.RegisterAuditServer(s, auditAPI{m: m})
	m.api.Register(s)
}

// caller returns the caller of a call, for events.
func caller(ctx context.Context) string { return callerid.FromContext(ctx).String() }

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
