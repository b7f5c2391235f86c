package connect

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/approval"
	"github.com/orlop-os/orlop/pkg/client"
)

// beforeCall returns the function client.Endpoint.BeforeCall. It records guarded calls for a
// request, or adds the approval of --approval to them.
func (conn *Connector) beforeCall() (func(context.Context, *client.Client, string, proto.Message) error, error) {
	if conn.Recorder != nil {
		return conn.Recorder.beforeCall, nil
	}
	if conn.Flags.Approval == "" {
		return nil, nil
	}
	file, err := os.ReadFile(conn.Flags.Approval)
	if err != nil {
		return nil, exit.Usagef("--approval: cannot read: %w", err)
	}
	return func(_ context.Context, _ *client.Client, method string, request proto.Message) error {
		if api.ApprovalRuleOf(method).GetGuard() != api.Guard_GUARD_UNSPECIFIED {
			setApproval(request, file)
		}
		return nil
	}, nil
}

// setApproval sets the field of a request that carries the approval.
func setApproval(request proto.Message, file []byte) {
	m := request.ProtoReflect()
	m.Set(m.Descriptor().Fields().ByName(approval.Field), protoreflect.ValueOfBytes(file))
}

// ErrRecorded ends a command of which a Recorder has recorded a guarded call. The machine has not
// received the call.
var ErrRecorded = errors.New("the call is recorded, and was not sent")

// Recorder records the guarded calls of a command in place of sending them. It is safe for
// concurrent use.
type Recorder struct {
	mu       sync.Mutex
	Call     string // full name of the method; empty: no call was recorded
	Content  map[string]string
	Machines []approval.Machine
}

// unguarded are calls that a command can make before its guarded call, although they have an
// approval rule. They change no data of the machine.
var unguarded = []string{api.Trust_Renew_FullMethodName, api.Etcd_Snapshot_FullMethodName}

// beforeCall records a guarded call and returns ErrRecorded. It rejects every other call that
// changes data.
func (r *Recorder) beforeCall(ctx context.Context, c *client.Client, method string, request proto.Message) error {
	rule := api.ApprovalRuleOf(method)
	apply, isApply := request.(*api.ApplyRequest)
	switch {
	case isApply && apply.Mode == api.ApplyRequest_MODE_DRY_RUN, rule == nil, slices.Contains(unguarded, method):
		return nil
	case rule.Guard == api.Guard_GUARD_UNSPECIFIED:
		return exit.Usagef("approval: cannot request: the command calls %s, which needs no approval; request the approval of a command with a guarded call", method)
	}
	content, err := contentOf(ctx, c, request)
	if err != nil {
		return err
	}
	version, err := c.Machine.Version(ctx, &api.VersionRequest{})
	if err != nil {
		return err
	}
	return r.add(method, content, approval.Machine{Name: version.Machine, Key: c.Key()})
}

// contentOf returns the content of a call. For a change of the configuration, the machine computes
// the changes of guarded fields: only the machine knows its present configuration.
func contentOf(ctx context.Context, c *client.Client, request proto.Message) (map[string]string, error) {
	apply, ok := request.(*api.ApplyRequest)
	if !ok {
		return approval.ContentOf(request)
	}
	dry := proto.CloneOf(apply)
	dry.Mode, dry.TrialDuration, dry.NoTrial, dry.TrialName = api.ApplyRequest_MODE_DRY_RUN, nil, false, ""
	answer, err := c.Config.Apply(ctx, dry)
	if err == nil && len(answer.Guarded) == 0 {
		err = exit.Usagef("approval: nothing to request: the machine has no rule for approvals, or the change needs no approval")
	}
	return answer.GetGuarded(), err
}

// add adds a machine. It fails if the machine needs an approval of another call.
func (r *Recorder) add(method string, content map[string]string, m approval.Machine) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.Call == "":
		r.Call, r.Content = method, content
	case r.Call != method || !maps.Equal(r.Content, content):
		return fmt.Errorf("approval: cannot request: the machine %s needs an approval of another call than %s; request one for each machine", m.Name, r.Machines[0].Name)
	}
	if !slices.Contains(r.Machines, m) {
		r.Machines = append(r.Machines, m)
	}
	return ErrRecorded
}
