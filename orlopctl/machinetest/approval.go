package machinetest

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/approval"
	"github.com/orlop-os/orlop/pkg/config"
)

// checkApproval rejects a guarded call, or a change of guarded fields, without a valid approval.
// The parameter partial permits an approval with more content than the call has. checkApproval does
// not record used approvals, so it accepts an approval more than once.
func (f *Machine) checkApproval(method string, content map[string]string, partial bool, file []byte) error {
	_, err := approval.RuleOf(f.Current().Approvals()).Verify(file, approval.Call{Method: method, Machine: f.Fingerprint, Content: content, Partial: partial}, time.Now())
	if err != nil {
		return status.Errorf(codes.FailedPrecondition, "%s: refused, nothing was changed: its approval is not valid: %v", method, err)
	}
	return nil
}

// checkUnary checks the approval of a unary call that erases data. It accepts any other call.
func (f *Machine) checkUnary(method string, request any) error {
	m, ok := request.(proto.Message)
	if !ok || api.ApprovalRuleOf(method).GetGuard() != api.Guard_GUARD_WIPE || !f.Current().Approvals().Guards(config.CallsWipe) {
		return nil
	}
	content, err := approval.ContentOf(m)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return f.checkApproval(method, content, false, api.ApprovalOf(m))
}

// checkChange checks the approval of a change of the configuration from before to next. For a dry
// run, it needs no approval, and adds the guarded changes to the response.
func (f *Machine) checkChange(answer *api.ApplyResponse, before, next *config.Config, r *api.ApplyRequest) error {
	changes := config.Guarded(before.Approvals(), before, next)
	switch {
	case r.Mode == api.ApplyRequest_MODE_DRY_RUN:
		answer.Guarded = changes
		return nil
	case len(changes) == 0:
		return nil
	}
	return f.checkApproval(api.Config_Apply_FullMethodName, changes, true, r.Approval)
}
