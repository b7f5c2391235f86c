package machinetest

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
)

type configService struct {
	api.UnimplementedConfigServer
	f *Machine
}

// Get implements api.ConfigServer.
func (s *configService) Get(_ context.Context, r *api.GetConfigRequest) (*api.GetConfigResponse, error) {
	c, err := s.numbered(r.Number)
	if err != nil {
		return nil, err
	}
	answer := &api.GetConfigResponse{Documents: config.MarshalRedacted(c), Source: "API (CN=admin)"}
	if r.Origins {
		answer.Documents = config.MarshalOrigins(c)
	}
	return answer, nil
}

// numbered returns the stored configuration with this number, of which 1 is the first. For 0, it
// returns the active configuration.
func (s *configService) numbered(number uint64) (*config.Config, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	switch {
	case number == 0 && s.f.configs.present == nil:
		return nil, status.Error(codes.NotFound, "configuration: there is none yet; apply one")
	case number == 0:
		return s.f.configs.present, nil
	case number > uint64(len(s.f.configs.past)):
		return nil, status.Errorf(codes.NotFound, "configuration %d: cannot find", number)
	}
	return s.f.configs.past[number-1], nil
}

// History implements api.ConfigServer.
func (s *configService) History(context.Context, *api.ConfigHistoryRequest) (*api.ConfigHistoryResponse, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	out, before := &api.ConfigHistoryResponse{}, (*config.Config)(nil)
	for i, c := range s.f.configs.past {
		e := &api.ConfigEntry{Number: uint64(i + 1), At: now, By: "CN=admin", Changes: config.Changes(before, c)}
		if before == nil {
			e.Changes = []string{"all of it"}
		}
		out.Entries, before = append(out.Entries, e), c
	}
	return out, nil
}

// Compare implements api.ConfigServer.
func (s *configService) Compare(_ context.Context, r *api.CompareConfigRequest) (*api.CompareConfigResponse, error) {
	from, err := s.numbered(r.From)
	if err != nil {
		return nil, err
	}
	to, err := s.numbered(r.To)
	return &api.CompareConfigResponse{Changes: config.Changes(from, to)}, err
}

// Apply implements api.ConfigServer.
func (s *configService) Apply(_ context.Context, r *api.ApplyRequest) (*api.ApplyResponse, error) {
	if r.Number != 0 {
		next, err := s.numbered(r.Number)
		if err != nil {
			return nil, err
		}
		answer := &api.ApplyResponse{Operations: config.Changes(s.f.Current(), next)}
		if r.Mode == api.ApplyRequest_MODE_TRY {
			answer.TrialDeadline = timestamppb.New(now.AsTime().Add(r.TrialDuration.AsDuration()))
		}
		return answer, s.f.Configure(next)
	}
	if r.Patch {
		present := s.f.Current()
		merged, err := config.Merge(config.Marshal(present), r.Documents)
		if err != nil {
			return nil, status.Error(codes.FailedPrecondition, err.Error())
		}
		next, problems := config.Parse("patched", merged)
		if problems.Err() != nil {
			return nil, status.Error(codes.InvalidArgument, problems.Error())
		}
		answer := &api.ApplyResponse{Operations: config.Changes(present, next)}
		return s.completed(answer, present, next, r)
	}
	parsed, problems := config.Parse(r.Filename, r.Documents)
	if problems.Err() != nil {
		return nil, status.Error(codes.InvalidArgument, problems.Error())
	}
	if parsed.Machine.Metadata.Name == "diskless" {
		// The configuration is valid, but has a problem that only the machine can find.
		refused, err := status.New(codes.InvalidArgument, "refused").WithDetails(&api.Problem{
			File: r.Filename, Line: 4, Field: "Machine.spec.disk", Reason: "the machine has no disk", Expected: "a disk of at least 4GiB", Hint: "add a disk",
		})
		if err != nil {
			return nil, err
		}
		return nil, refused.Err()
	}
	if parsed.Machine.Spec.Install != nil {
		s.f.mu.Lock()
		s.f.install.name, s.f.install.watched = parsed.Machine.Metadata.Name, 0
		s.f.mu.Unlock()
		return &api.ApplyResponse{Operations: []string{"install: onto /dev/vda", "install: write the boot loader (/dev/vda1)"}, Install: "/dev/vda"}, nil
	}
	if s.f.Current() != nil {
		return &api.ApplyResponse{}, nil
	}
	answer := &api.ApplyResponse{
		Operations: []string{"format DATA (/dev/vda5) as ext4", "set the host name to " + parsed.Machine.Metadata.Name},
		Restarts:   []string{"containerd", "orchestrator-node"},
		Reboot:     parsed.Machine.Metadata.Name == "rebooter",
	}
	if r.Mode == api.ApplyRequest_MODE_DRY_RUN {
		return answer, nil
	}
	return answer, s.f.Configure(parsed)
}
