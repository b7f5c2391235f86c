package membership

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/trust"
)

// RecordApproval stores the approval of a waiting machine by a rule, here and in more than half of
// the ledgers (docs/decisions/0120-approval-rules.md). Only then the approval may have an effect:
// two majorities have a machine in common, which refuses the second of two contradictory approvals.
// The caller may repeat the call. An approval that was refused elsewhere stays in this ledger, and
// excludes other keys until an operator decides.
func (s *Server) RecordApproval(ctx context.Context, a trust.Approval) error {
	c, err := s.issuingConfig()
	if err != nil {
		return err
	}
	vs := s.quorum.voters(c)
	ledgers, failed := s.quorum.sync(ctx, vs.others, vs.needed())
	if err := vs.check(len(ledgers), "compare the approvals", failed); err != nil {
		return err
	}
	if _, err := s.apply(c, approved{a}); err != nil {
		return err
	}
	r := &api.ReplicateMembershipRequest{Membership: toMembership(trust.Membership{Approvals: []trust.Approval{a}})}
	stored, failed, refused := s.quorum.replicate(ctx, vs.others, r, a.ID(), vs.needed())
	if refused != nil && len(stored) < vs.needed() {
		return status.Error(codes.FailedPrecondition, refused.Error())
	}
	return vs.check(len(stored), "store the approval", failed)
}
