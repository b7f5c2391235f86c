package upgrade

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"

	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/pkg/disruption"
	"github.com/orlop-os/orlop/pkg/slot"
	"github.com/orlop-os/orlop/pkg/slot/esp"
)

// How the cluster is asked before an upgrade or a rollback (docs/decisions/0087-disruptions.md).
// An upgrade is checked several times:
//
//  1. When the statement of its bundle has arrived, before the rest is transferred.
//  2. When the bundle is complete, if it changes the minor version of Kubernetes: the boot image
//     names that version. Nothing was written to the other slot yet.
//  3. Before the boot loader knows the version: the cluster can have changed meanwhile.
//  4. After the drain, which can take an hour. So is a rollback.

// question is the question of an upgrade to the cluster.
type question struct {
	with Disruption
	disruption.Request
	source   string // of the bundle, for Receiver.sources; empty: the caller named the only source
	giveBack func() // nil before the upgrade is permitted
}

// ask returns the question of an upgrade for a caller.
func (r *Receiver) ask(force bool, by string) *question {
	return &question{with: r.deps.Disruption, Request: disruption.Request{Operation: disruption.Upgrade, Force: force, By: by}}
}

// permit takes the turn, or returns the reason for which the upgrade is refused.
func (q *question) permit(ctx context.Context) (err error) {
	q.giveBack, err = q.with.Permit(ctx, q.Request)
	return err
}

// confirm checks the upgrade again.
func (q *question) confirm(ctx context.Context) error { return q.with.Confirm(ctx, q.Request) }

// end returns the turn after an upgrade that ended before the reboot.
func (q *question) end() {
	if q.giveBack != nil {
		q.giveBack()
	}
	q.giveBack = nil // the next call does nothing
}

// confirmVersion checks the boot image of the received bundle: whether the firmware would start it,
// and its version of Kubernetes. The first check cannot be overridden: a machine whose firmware
// refuses an image stays in the firmware, and does not reboot into the former version
// (docs/decisions/0117-secure-boot.md).
func (r *Receiver) confirmVersion(ctx context.Context, i Installer, q *question) error {
	f, err := r.deps.Files.Inbox.Open()
	if err != nil {
		return err
	}
	defer f.Close()
	uki, err := bootImageIn(f, i.Trust)
	if err != nil {
		return err
	}
	if err := r.deps.Disk.Firmware.CheckBytes(ctx, uki); err != nil {
		// Another attempt with the same bundle succeeds once the firmware has its key.
		return fmt.Errorf("upgrade refused, nothing was written: %w", err)
	}
	q.Kubernetes = kubernetesOf(bytes.NewReader(uki))
	q.Forgets = q.Kubernetes == "" // as in a rollback
	// A worker needs less.
	m := disruption.Machine{Kubernetes: r.deps.Release().Kubernetes, ControlPlane: true}
	if !disruption.NeedsVersions(m, q.Request) && !disruption.NeedsLevel(m, q.Request) {
		return nil
	}
	return q.confirm(ctx)
}

// bootImageIn returns the boot image of a bundle.
func bootImageIn(f *os.File, trust bundle.Trust) ([]byte, error) {
	b, err := bundle.Open(f, trust)
	if err != nil {
		return nil, err
	}
	if err := b.SkipRoot(); err != nil {
		return nil, err
	}
	return b.UKI()
}

// kubernetesOf returns the version of Kubernetes of a boot image; empty if it does not name it. A
// boot image of an unknown form was signed, and boots or is rolled back.
func kubernetesOf(uki io.ReaderAt) string {
	version, err := esp.KubernetesVersion(uki)
	if err != nil {
		return ""
	}
	return version
}

// askRollback returns the question of a rollback to a version.
func (c *Controller) askRollback(version string, force bool, by string) (*question, error) {
	r := disruption.Request{Operation: disruption.Rollback, Force: force, By: by}
	err := c.esp.Version(version, func(uki *os.File, _ []byte) error {
		r.Kubernetes = kubernetesOf(uki)
		r.Forgets = r.Kubernetes == "" // the version is older than the turn
		return nil
	})
	return &question{with: c.deps.Disruption, Request: r}, err
}

// drainFor drains the node for a rollback that the cluster permits before and after. An error
// leaves the node, and the turn, as they were before.
func (c *Controller) drainFor(ctx context.Context, q *question) error {
	if err := q.permit(ctx); err != nil {
		return err
	}
	if err := c.drain(q); err != nil {
		q.end()
		return fmt.Errorf("rollback refused: %w", err)
	}
	if err := q.confirm(c.deps.Running); err != nil {
		c.deps.Node.Drain.Undo(q.Operation, q.By)
		q.end()
		return err
	}
	return nil
}

// drain drains the node, if the configuration wants it. It continues if the operator disconnects.
func (c *Controller) drain(q *question) error {
	if !c.deps.Node.Drain.Wanted() {
		return nil
	}
	c.progress.begin("drain the node", 0)
	defer c.progress.begin("", 0)
	return c.deps.Node.Drain.Drain(c.deps.Running, q.Operation, q.By)
}

// commit handles the success of all checks. It returns the turn before the status says that the
// upgrade has ended: an operator continues with the next machine then.
func (c *Controller) commit(ctx context.Context, e slot.ChecksPassed) error {
	if !c.deps.Disruption.Held() {
		return c.handle(ctx, e)
	}
	c.progress.begin("return the turn of the control plane", 0)
	defer c.progress.begin("", 0)
	err := c.handle(ctx, e)
	if err == nil {
		c.deps.Disruption.Return() // if it fails, the turn is returned later, or ends
	}
	return err
}
