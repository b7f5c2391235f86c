package machinetest

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/reconcile"
)

// Confirm implements api.ConfigServer. The name of the first link in the configuration selects the
// result. With eth9, the call fails as if it had not reached the machine. With eth8, the call fails
// because the trial has already ended. The first call of each trial fails, too.
func (s *configService) Confirm(_ context.Context, r *api.ConfirmConfigRequest) (*api.ConfirmConfigResponse, error) {
	now := s.f.Current()
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	if s.f.trial.name == "" && r.TrialName == "" {
		return &api.ConfirmConfigResponse{}, nil // a trial of mode try has no name
	}
	s.f.trial.confirms++
	switch {
	case r.TrialName != "" && r.TrialName != s.f.trial.name:
		return nil, status.Error(codes.FailedPrecondition, "configuration: not confirmed: another one than yours is on trial")
	case s.f.trial.boots > 0:
		s.f.trial.boots--
		return nil, status.Error(codes.Unavailable, "configuration: not confirmed: it is staged, and its trial begins with the next boot; confirm it then")
	case s.f.trial.confirms == 1:
		return nil, status.Error(codes.Unavailable, "configuration: not confirmed: the connection is older than what is on trial")
	case now.Network.Spec.Links[0].Name == "eth9":
		return nil, status.Error(codes.Unavailable, "no such machine")
	case now.Network.Spec.Links[0].Name == "eth8":
		return nil, status.Error(codes.FailedPrecondition, "configuration: there is none on trial that could be confirmed")
	}
	s.f.trial.name = ""
	return &api.ConfirmConfigResponse{Failures: failuresIn(now)}, nil
}

// failuresIn returns the failed operations of a configuration. The fake machine does not have the
// kernel module iscsi_tcp.
func failuresIn(c *config.Config) []string {
	if slices.Contains(c.Machine.Spec.KernelModules, "iscsi_tcp") {
		return []string{"host: cannot load kernel modules iscsi_tcp: iscsi_tcp: not found"}
	}
	return nil
}

// completed adds the effects of a patch to the response answer, and returns it. It makes the
// configuration next active, unless the call is a dry run. If one of the configurations has links,
// the change can cut off its caller, and starts a trial unless the call forbids it.
func (s *configService) completed(answer *api.ApplyResponse, before, next *config.Config, r *api.ApplyRequest) (*api.ApplyResponse, error) {
	if err := s.f.checkChange(answer, before, next, r); err != nil {
		return nil, err
	}
	if slices.Contains(next.Machine.Spec.KernelModules, "iscsi_tcp") {
		answer.Operations = append(answer.Operations, "host: load kernel modules iscsi_tcp")
	}
	if r.Force {
		answer.Warnings = []string{"accepted by force: the machine does not have the link"}
	}
	cuts := len(before.Network.Spec.Links) > 0 || len(next.Network.Spec.Links) > 0
	if cuts {
		answer.CutOffWarnings = []string{"this can cut you off: Network.spec.links"}
	}
	switch {
	case r.Mode == api.ApplyRequest_MODE_DRY_RUN:
		return answer, nil
	case cuts && r.Mode == api.ApplyRequest_MODE_STAGED && !r.NoTrial:
		return nil, status.Error(codes.FailedPrecondition, "Network.spec.links: the change can cut you off, and has no trial; use --mode reboot, or --no-trial")
	case r.Mode == api.ApplyRequest_MODE_REBOOT:
		answer.Reboot = true
		if cuts && !r.NoTrial {
			s.f.mu.Lock()
			s.f.trial.name, s.f.trial.confirms, s.f.trial.boots = r.TrialName, 0, 2
			s.f.mu.Unlock()
			answer.TrialDuration = durationpb.New(5 * time.Minute)
		}
	case cuts && r.Mode == api.ApplyRequest_MODE_AUTO && !r.NoTrial:
		s.f.mu.Lock()
		s.f.trial.name, s.f.trial.confirms = r.TrialName, 0
		s.f.mu.Unlock()
		answer.TrialDuration = durationpb.New(time.Minute)
		if r.TrialDuration != nil {
			answer.TrialDuration = r.TrialDuration
		}
		answer.TrialDeadline = timestamppb.New(now.AsTime().Add(answer.TrialDuration.AsDuration()))
	default:
		answer.Failures = failuresIn(next)
		answer.Operations = reconcile.Done(answer.Operations, answer.Failures)
	}
	return answer, s.f.Configure(next)
}
