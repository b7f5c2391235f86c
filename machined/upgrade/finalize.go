package upgrade

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// finalizeTimeout is the longest time of the command raise-level, during which no upgrade can
// start. It is longer than all attempts of the command together (orchestrator/etcd/raise.go).
const finalizeTimeout = 5 * time.Minute

// Finalize raises the level of the cluster for a caller (by), and returns the level before and
// after (docs/decisions/0096-two-phases.md). The orchestrator's command raise-level checks the
// other machines. Finalize itself checks that no upgrade of this machine is undecided, because the
// command does not see that on a machine without other control-plane machines.
func (c *Controller) Finalize(ctx context.Context, by string) (from, to string, err error) {
	config := c.deps.Node.Config()
	if config == nil || !config.IsControlPlane() {
		return "", "", status.Error(codes.FailedPrecondition, "finalize refused: this machine is no control-plane machine; call one (`orlopctl upgrade finalize -n ADDRESS`)")
	}
	unlock, ok := c.TryLock()
	if !ok {
		return "", "", status.Error(codes.Aborted, "finalize refused: a bundle is being received or written; wait for the outcome (`orlopctl upgrade status --wait`)")
	}
	defer unlock()
	if err := c.Record().Undecided(); err != nil {
		return "", "", status.Errorf(codes.FailedPrecondition, "finalize refused: %v (`orlopctl upgrade status --wait`)", err)
	}
	// The command continues if the caller disconnects, because the new level may already be stored.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finalizeTimeout)
	defer cancel()
	raised, err := nodespec.Run[nodespec.LevelRaised](ctx, c.deps.Node.Command, paths.UserAPI, "raise-level", nodespec.RaiseLevel{By: by})
	if err != nil {
		return "", "", status.Error(codes.FailedPrecondition, err.Error())
	}
	if raised.From != raised.To {
		c.progress.event("level", "the level of the cluster is raised from "+raised.From.String()+" to "+raised.To.String()+", asked by "+by)
	}
	return raised.From.String(), raised.To.String(), nil
}
