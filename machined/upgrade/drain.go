package upgrade

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// How the node is drained before the machine starts another version, rolls back, or is reset. The
// orchestrator evicts the pods (orchestrator/drain), and uncordons the node by itself after the
// boot.

// drainReserve is the time of the orchestrator in addition to the timeout for the pods, to start
// and to uncordon the node after a failure.
const drainReserve = 30 * time.Second

// Drainer drains the node. All methods are safe for concurrent use.
type Drainer struct {
	deps     *Deps
	progress progress
}

// config returns the drain policy of the active configuration, and reports whether a drain is
// configured. A removed machine has no pods to evict and no API server to call.
func (d *Drainer) config() (config.Drain, bool) {
	active := d.deps.Node.Config()
	if d.deps.Node.Removed() || active == nil || active.Cluster == nil {
		return config.Drain{}, false
	}
	want := active.Machine.Spec.Upgrade.Drain
	return want, want.Policy != config.DrainNone
}

// Drain drains the node for a request of an operator, if the configuration wants it. It continues
// if the operator disconnects.
func (d *Drainer) Drain() error {
	want, drains := d.config()
	if !drains {
		return nil
	}
	d.progress.begin("drain the node", 0)
	defer d.progress.begin("", 0)
	return d.drain(d.deps.Running, want)
}

// Uncordon makes the node schedulable again, because the operation that needed the drain did not
// happen.
func (d *Drainer) Uncordon() {
	if _, drains := d.config(); !drains {
		return
	}
	if _, err := d.command(d.deps.Running, nodespec.DrainRequest{Timeout: drainReserve, Undo: true}); err != nil {
		d.progress.failure("cannot uncordon the node: " + err.Error() + "; use `kubectl uncordon`")
	}
}

// drain drains the node. It fails only if the policy is to respect the objects that block an
// eviction.
func (d *Drainer) drain(ctx context.Context, want config.Drain) error {
	request := nodespec.DrainRequest{
		Timeout: time.Duration(want.Timeout), Refuse: want.Policy == config.DrainRespect, Delete: want.Policy == config.DrainForce,
	}
	done, err := d.command(ctx, request)
	if done.Refused {
		err = fmt.Errorf("drain not complete within %v: %s", request.Timeout, strings.Join(done.Remaining, "; "))
	}
	switch {
	case err != nil && request.Refuse:
		if !done.Refused { // the drain may not have reached the uncordon of its own
			d.Uncordon()
		}
		return err
	case err != nil:
		d.progress.failure("cannot evict the pods: " + err.Error())
	default:
		d.progress.event("operation", strings.Join(append([]string{fmt.Sprintf("%d pods evicted", done.Evicted)}, done.Remaining...), "; "))
	}
	return nil
}

// command runs the orchestrator's command.
func (d *Drainer) command(ctx context.Context, request nodespec.DrainRequest) (nodespec.DrainResult, error) {
	ctx, cancel := context.WithTimeout(ctx, request.Timeout+drainReserve)
	defer cancel()
	return nodespec.Run[nodespec.DrainResult](ctx, d.deps.Node.Command, 0, "drain", request)
}
