package api

import (
	"context"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/approval"
	"github.com/orlop-os/orlop/pkg/config"
)

// groups maps the guards of the .proto file to the groups of the configuration. The package that
// applies configurations checks calls with GUARD_CONFIGURATION, because only that package knows the
// changes.
var groups = map[api.Guard]config.ApprovalCalls{
	api.Guard_GUARD_WIPE: config.CallsWipe, api.Guard_GUARD_ETCD: config.CallsEtcd, api.Guard_GUARD_MEMBERS: config.CallsMembers,
}

// CheckApproval checks the approval of a call (approvals.Gate.Check).
type CheckApproval func(group config.ApprovalCalls, method string, content map[string]string, file []byte) (by []string, err error)

// checkApproval rejects a guarded call without a valid approval. It records the approvers in the
// audit log. request is the first message of the call.
func (g Interceptor) checkApproval(ctx context.Context, method string, request any) error {
	group, guarded := groups[api.ApprovalRuleOf(method).GetGuard()]
	m, ok := request.(proto.Message)
	if !guarded || !ok || g.CheckApproval == nil {
		return nil
	}
	content, err := approval.ContentOf(m)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	by, err := g.CheckApproval(group, method, content, api.ApprovalOf(m))
	SetApprovers(ctx, by)
	return err
}

// checkFirst returns a function that calls checkApproval for the first request of a stream, and
// returns the same error for each later request. The first request has the digest of the content
// that the later requests send.
func (g Interceptor) checkFirst(ctx context.Context, method string) func(request any) error {
	var once sync.Once
	var rejected error
	return func(request any) error {
		once.Do(func() { rejected = g.checkApproval(ctx, method, request) })
		return rejected
	}
}

// withApproval returns a context with the approval of a call, for a handler that finds out later
// whether the call needs the approval.
func withApproval(ctx context.Context, request proto.Message) (context.Context, error) {
	content, err := approval.ContentOf(request)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return approval.NewContext(ctx, approval.Pending{Content: content, Approval: api.ApprovalOf(request)}), nil
}

// SetApprovers records the approvers of the call of a context in the audit log.
func SetApprovers(ctx context.Context, by []string) {
	if o, ok := ctx.Value(recordedCallKey{}).(*recordedCall); ok && len(by) > 0 {
		names := strings.Join(by, ", ")
		o.approvers.Store(&names)
	}
}
