package api

import (
	"cmp"
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
)

// ConfigDeps are the dependencies of service Config.
type ConfigDeps struct {
	// Apply applies the documents of a request or rejects them; the error is config.Problems if the
	// documents have problems.
	Apply func(ctx context.Context, filename string, r *api.ApplyRequest) (*api.ApplyResponse, error)
	// Confirm ends a trial, and returns the operations that failed; the error is a gRPC status.
	Confirm func(ctx context.Context, by api.Caller, trialName string) (failures []string, err error)
	// Revision returns a configuration of the history, or for 0 the active configuration, with the
	// time and the author of its activation; the error is a gRPC status.
	Revision func(number uint64) (c *config.Config, at time.Time, by string, err error)
	// History returns the configurations of the history.
	History func() ([]*api.ConfigEntry, error)
}

type configService struct {
	api.UnimplementedConfigServer
	deps ConfigDeps
}

// maxDocuments is the maximum size of a configuration, in bytes.
const maxDocuments = 1 << 20

func (s configService) Apply(ctx context.Context, r *api.ApplyRequest) (*api.ApplyResponse, error) {
	if len(r.Documents) > maxDocuments {
		return nil, status.Errorf(codes.InvalidArgument, "configuration: %d bytes exceed the limit of %d", len(r.Documents), maxDocuments)
	}
	out, err := s.deps.Apply(ctx, cmp.Or(r.Filename, "-"), r)
	var problems config.Problems
	switch {
	case errors.As(err, &problems):
		return nil, rejection(problems)
	case err != nil:
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	if r.Mode == api.ApplyRequest_MODE_DRY_RUN {
		SetUnchanged(ctx)
	}
	return out, nil
}

// rejection is the status of a rejected configuration: the text for operators, and each problem as
// a detail for tools.
func rejection(problems config.Problems) error {
	s := status.New(codes.InvalidArgument, config.Refused+"\n"+problems.Error())
	for _, p := range problems {
		d := &api.Problem{File: p.File, Line: int32(p.Line), Field: p.Field, Reason: p.Reason, Expected: p.Expected, Hint: p.Remedy()}
		if next, err := s.WithDetails(d); err == nil {
			s = next
		}
	}
	return s.Err()
}

func (s configService) Confirm(ctx context.Context, r *api.ConfirmConfigRequest) (*api.ConfirmConfigResponse, error) {
	failures, err := s.deps.Confirm(ctx, api.CallerFromContext(ctx), r.TrialName)
	if err != nil {
		return nil, err
	}
	return &api.ConfirmConfigResponse{Failures: failures}, nil
}

func (s configService) History(context.Context, *api.ConfigHistoryRequest) (*api.ConfigHistoryResponse, error) {
	entries, err := s.deps.History()
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &api.ConfigHistoryResponse{Entries: entries}, nil
}

func (s configService) Compare(_ context.Context, r *api.CompareConfigRequest) (*api.CompareConfigResponse, error) {
	from, _, _, err := s.deps.Revision(r.From)
	if err != nil {
		return nil, err
	}
	to, _, _, err := s.deps.Revision(r.To)
	if err != nil {
		return nil, err
	}
	return &api.CompareConfigResponse{Changes: config.Changes(from, to)}, nil
}

func (s configService) Get(_ context.Context, r *api.GetConfigRequest) (*api.GetConfigResponse, error) {
	c, at, by, err := s.deps.Revision(r.Number)
	if err != nil {
		return nil, err
	}
	print := config.MarshalRedacted
	if r.Origins {
		print = config.MarshalOrigins
	}
	return &api.GetConfigResponse{Documents: print(c), Applied: timestamppb.New(at), Source: by}, nil
}
