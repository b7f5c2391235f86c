package upgrade

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"

	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/pkg/disruption"
	"github.com/orlop-os/orlop/pkg/safefile"
	"github.com/orlop-os/orlop/pkg/slot"
	"github.com/orlop-os/orlop/pkg/slot/esp"
)

// How a machine asks the cluster for permission before an upgrade or a rollback
// (docs/decisions/0087-disruptions.md). An upgrade is checked several times:
//
//  1. When the statement of the bundle has arrived, before the transfer of the rest of the bundle.
//  2. When the bundle is complete, if it changes the minor version of Kubernetes. Only the boot
//     image names that version. The machine has not written to the other slot yet.
//  3. Before the boot entry is added, because the cluster can have changed meanwhile.
//  4. After the drain, because a drain can take an hour.

// disruptionRequest asks the cluster whether this machine may be away for an upgrade or a rollback.
// It also holds the turn that the cluster has granted.
type disruptionRequest struct {
	with Disruption
	disruption.Request
	// source is the source of the bundle, for Receiver.sources; empty if its failures do not count.
	source   string
	giveBack func() // returns the turn; nil before the upgrade is permitted
}

// ask returns the request of an upgrade. by names the caller. It does not send the request to the
// cluster.
func (r *Receiver) ask(force bool, by string) *disruptionRequest {
	return &disruptionRequest{with: r.deps.Disruption, Request: disruption.Request{Operation: disruption.Upgrade, Force: force, By: by}}
}

// permit asks the cluster for the operation, and takes the turn. If the cluster refuses the
// operation, permit returns the reason.
func (q *disruptionRequest) permit(ctx context.Context) (err error) {
	q.giveBack, err = q.with.Permit(ctx, q.Request)
	return err
}

// confirm checks whether the cluster still permits the operation.
func (q *disruptionRequest) confirm(ctx context.Context) error { return q.with.Confirm(ctx, q.Request) }

// end returns the turn of an operation that has ended before the reboot. It can be called several
// times.
func (q *disruptionRequest) end() {
	if q.giveBack != nil {
		q.giveBack()
	}
	q.giveBack = nil // another call of end returns no turn
}

// confirmVersion checks the boot image of the received bundle: first whether the firmware would
// start it, then its version of Kubernetes. force does not override the check of the firmware. If
// the firmware rejects a boot image, the machine stays in the firmware and does not boot the former
// version (docs/decisions/0117-secure-boot.md).
func (r *Receiver) confirmVersion(ctx context.Context, i Installer, q *disruptionRequest) error {
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
		// The error is no Refusal, because this machine accepts the same bundle as soon as the
		// firmware has the key that signed the boot image.
		return fmt.Errorf("upgrade refused, nothing was written: %w", err)
	}
	image := func() (*os.File, error) { return safefile.InMemory("boot image", uki) }
	if err := r.deps.Disk.checkUnlock(ctx, image, q.Force); err != nil {
		return fmt.Errorf("upgrade refused, nothing was written: %w", err)
	}
	q.Kubernetes = kubernetesOf(bytes.NewReader(uki))
	q.Forgets = q.Kubernetes == "" // a version that names no Kubernetes does not know the turn
	// The checks for a control-plane machine include all checks for a worker.
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

// kubernetesOf returns the version of Kubernetes that a boot image names; empty if the image names
// none or cannot be parsed. An image that cannot be parsed is not an error here, because it was
// signed, and because a version that does not boot is rolled back.
func kubernetesOf(uki io.ReaderAt) string {
	version, err := esp.KubernetesVersion(uki)
	if err != nil {
		return ""
	}
	return version
}

// askRollback returns the request of a rollback to a version, with the Kubernetes version of its
// boot image.
func (c *Controller) askRollback(version string, force bool, by string) (*disruptionRequest, error) {
	r := disruption.Request{Operation: disruption.Rollback, Force: force, By: by}
	err := c.esp.Version(version, func(uki *os.File, _ []byte) error {
		r.Kubernetes = kubernetesOf(uki)
		r.Forgets = r.Kubernetes == "" // the version is so old that it does not know the turn
		return nil
	})
	return &disruptionRequest{with: c.deps.Disruption, Request: r}, err
}

// drainFor drains the node for a rollback. It asks the cluster before and after the drain. If it
// returns an error, it has undone the drain and returned the turn.
func (c *Controller) drainFor(ctx context.Context, q *disruptionRequest) error {
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

// drain drains the node, if the configuration wants a drain. The drain continues if the caller
// disconnects.
func (c *Controller) drain(q *disruptionRequest) error {
	if !c.deps.Node.Drain.Wanted() {
		return nil
	}
	c.progress.begin("drain the node", 0)
	defer c.progress.begin("", 0)
	return c.deps.Node.Drain.Drain(c.deps.Running, q.Operation, q.By)
}

// commit handles the success of all checks. It returns the turn before the status says that the
// upgrade has ended, because an operator may then continue with the next machine.
func (c *Controller) commit(ctx context.Context, e slot.ChecksPassed) error {
	if !c.deps.Disruption.Held() {
		return c.handle(ctx, e)
	}
	c.progress.begin("return the turn of the control plane", 0)
	defer c.progress.begin("", 0)
	err := c.handle(ctx, e)
	if err == nil {
		c.deps.Disruption.Return() // after a failure, the lease of the turn expires
	}
	return err
}
