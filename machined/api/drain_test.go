package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
)

// TestDrainPolicy checks that Reboot, Shutdown and Reset use the drain policy of the caller, and
// reject a policy or timeout that is not valid.
func TestDrainPolicy(t *testing.T) {
	var given config.Drain
	start := func(_ context.Context, s Shutdown) error { given = s.Drain; return nil }
	s := machineService{deps: MachineDeps{Reboot: start, PowerOff: start, Reset: start}}
	for _, test := range []struct {
		policy string
		after  time.Duration
		code   codes.Code
	}{
		{"", 0, codes.OK}, {"none", 0, codes.OK}, {"force", time.Second, codes.OK}, {"respect", time.Hour, codes.OK},
		{"perhaps", 0, codes.InvalidArgument}, {"force", time.Hour + 1, codes.InvalidArgument}, {"force", -time.Second, codes.InvalidArgument}, {"", time.Millisecond, codes.InvalidArgument},
	} {
		drain := &api.DrainPolicy{Policy: test.policy, Timeout: durationpb.New(test.after)}
		calls := map[string]func() error{
			"Reboot":   func() error { _, err := s.Reboot(t.Context(), &api.PowerRequest{Drain: drain}); return err },
			"Shutdown": func() error { _, err := s.Shutdown(t.Context(), &api.PowerRequest{Drain: drain}); return err },
			"Reset":    func() error { _, err := s.Reset(t.Context(), &api.ResetRequest{Drain: drain}); return err },
		}
		for name, call := range calls {
			given = config.Drain{}
			if err := call(); status.Code(err) != test.code || test.code == codes.OK && given != (config.Drain{Policy: config.DrainPolicy(test.policy), Timeout: config.Duration(test.after)}) {
				t.Errorf("%s with %+v: %v, the shutdown has the drain policy %+v", name, test, err, given)
			}
		}
	}
}

// removals is a membership that records the removals.
type removals struct {
	Members
	calls []string
	fails bool
}

func (r *removals) ListMembers() *api.ListMembersResponse {
	return &api.ListMembersResponse{Members: []*api.Member{{Name: "w1"}}}
}

func (r *removals) RemoveMember(ctx context.Context, _ api.Caller, q *api.RemoveMemberRequest) (*api.RemoveMemberResponse, error) {
	r.calls = append(r.calls, fmt.Sprintf("remove %s, disconnected %t", q.Name, ctx.Err() != nil))
	if r.fails {
		return nil, status.Error(codes.Unavailable, "no quorum")
	}
	return &api.RemoveMemberResponse{}, nil
}

// TestRemoveAfterDrain checks that RemoveMember drains a member only if the request has a drain
// policy. If the drain fails, the member is not removed. If the removal fails, the drain is undone.
// After a drain, the removal continues although the caller has disconnected.
func TestRemoveAfterDrain(t *testing.T) {
	for name, test := range map[string]struct {
		request *api.RemoveMemberRequest
		blocked bool // the drain fails
		fails   bool // the removal fails
		code    codes.Code
		want    []string
	}{
		"no drain policy":                   {&api.RemoveMemberRequest{Name: "w1"}, false, false, codes.OK, []string{"remove w1, disconnected true"}},
		"a drain":                           {&api.RemoveMemberRequest{Name: "w1", Drain: &api.DrainPolicy{Policy: "force"}}, false, false, codes.OK, []string{"drain w1 with force", "remove w1, disconnected false"}},
		"the drain fails":                   {&api.RemoveMemberRequest{Name: "w1", Drain: &api.DrainPolicy{Policy: "respect"}}, true, false, codes.FailedPrecondition, []string{"drain w1 with respect"}},
		"the removal fails":                 {&api.RemoveMemberRequest{Name: "w1", Drain: &api.DrainPolicy{Policy: "force"}}, false, true, codes.Unavailable, []string{"drain w1 with force", "remove w1, disconnected false", "undo"}},
		"an unknown policy":                 {&api.RemoveMemberRequest{Name: "w1", Drain: &api.DrainPolicy{Policy: "perhaps"}}, false, false, codes.InvalidArgument, nil},
		"a control-plane machine":           {&api.RemoveMemberRequest{Name: "m1", Drain: &api.DrainPolicy{Policy: "force"}}, false, false, codes.NotFound, nil},
		"no drain policy, and not a member": {&api.RemoveMemberRequest{Name: "w9"}, false, false, codes.OK, []string{"remove w9, disconnected true"}},
	} {
		m := &removals{fails: test.fails}
		s := clusterService{deps: ClusterDeps{Members: m, DrainMember: func(node string, policy config.Drain, _ string) (func(), error) {
			m.calls = append(m.calls, fmt.Sprintf("drain %s with %s", node, policy.Policy))
			if test.blocked {
				return nil, errors.New("drain not complete")
			}
			return func() { m.calls = append(m.calls, "undo") }, nil
		}}}
		ctx, disconnect := context.WithCancel(t.Context())
		disconnect()
		_, err := s.RemoveMember(ctx, test.request)
		if status.Code(err) != test.code || !slices.Equal(m.calls, test.want) {
			t.Errorf("%s: %v, %q", name, err, m.calls)
		}
	}
}
