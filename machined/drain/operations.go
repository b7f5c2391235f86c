package drain

import (
	"context"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disruption"
)

// removal is the operation of a drain of another machine.
const removal = "removal"

// DrainMember drains the node of another machine before its removal. undo makes the node
// schedulable again if the removal does not happen.
func (d *Drainer) DrainMember(ctx context.Context, node, by string, policy config.Drain) (undo func(), err error) {
	o := Order{Operation: removal, By: by, Node: node, Policy: policy}
	_, err = d.Drain(ctx, o)
	return func() { d.Undo(o) }, err
}

// DrainOwn drains the node of this machine before it is away, if the policy requires a drain, and
// reports whether it did.
func (d *Drainer) DrainOwn(ctx context.Context, o disruption.Operation, by string, policy config.Drain) (done bool, err error) {
	return d.Drain(ctx, Order{Operation: o.Name(), By: by, Policy: policy})
}

// UndoOwn ends the drain of this machine because the operation does not happen.
func (d *Drainer) UndoOwn(o disruption.Operation, by string) {
	d.Undo(Order{Operation: o.Name(), By: by})
}

// Configured drains the node of this machine with the policy of the configuration: the callers of
// upgrades and rollbacks choose no policy.
type Configured struct{ *Drainer }

// Wanted reports whether the configuration requires a drain.
func (c Configured) Wanted() bool { return c.Drainer.Wanted(config.Drain{}) }

// Drain drains the node for an operation of an author, if the configuration requires a drain.
func (c Configured) Drain(ctx context.Context, o disruption.Operation, by string) error {
	_, err := c.DrainOwn(ctx, o, by, config.Drain{})
	return err
}

// Undo ends a drain because its operation does not happen.
func (c Configured) Undo(o disruption.Operation, by string) { c.UndoOwn(o, by) }

// Own returns the last drain of the machine's own node, for the machine object; nil if there is
// none.
func Own(all []State) *api.Drain {
	i := slices.IndexFunc(all, func(s State) bool { return s.Operation != removal })
	if i < 0 {
		return nil
	}
	s := all[i]
	out := &api.Drain{
		Operation: s.Operation, Policy: s.Policy, Phase: string(s.Phase), Started: timestamppb.New(s.Started), Deadline: timestamppb.New(s.Deadline),
		Evicted: int64(s.Evicted), Left: int64(s.Left), Problem: s.Problem,
	}
	for _, p := range s.Blocking() {
		out.Blocking = append(out.Blocking, &api.BlockingPod{Pod: p.Pod, Budget: p.Budget, Message: p.Message})
	}
	return out
}
