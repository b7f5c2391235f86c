package upgrade

import (
	"context"
	"errors"
	"os"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/slot"
)

// Rollback returns to the other version for a caller (by). It returns the name of that version
// after it has started the reboot. force overrides a refusal by the cluster.
func (c *Controller) Rollback(ctx context.Context, force bool, by string) (version string, err error) {
	return c.rollback(ctx, "", force, by)
}

// rollback is Rollback with a target version (to). If to is empty, the target is the version in the
// other slot.
func (c *Controller) rollback(ctx context.Context, to string, force bool, by string) (version string, err error) {
	entries, err := c.esp.Entries()
	if errors.Is(err, ErrNoSlots) {
		return "", status.Errorf(codes.FailedPrecondition, "rollback: %v", err)
	}
	if err != nil {
		return "", status.Error(codes.Internal, err.Error())
	}
	if !c.writeMu.TryLock() {
		return "", errBusy
	}
	defer c.writeMu.Unlock()
	epochs, err := Epochs(entries, c.esp)
	if err != nil {
		return "", status.Errorf(codes.FailedPrecondition, "rollback refused: %v", err)
	}
	event := slot.RollbackRequested{Entries: entries, To: to, Reason: "rollback asked by " + by, At: time.Now(), Epochs: epochs, Floor: c.EpochFloor()}
	next, _, err := slot.Step(c.deps.version(), c.Record(), event)
	if err != nil { // check the request before the drain
		return "", status.Errorf(codes.FailedPrecondition, "rollback: %v", err)
	}
	where, err := c.deps.Disk.Slots()
	if err != nil {
		return "", status.Errorf(codes.FailedPrecondition, "rollback refused: %v", err)
	}
	if err := where.VerifySlot(next.From, c.esp); err != nil {
		return "", status.Errorf(codes.FailedPrecondition, "rollback refused: version %s, the target of the rollback, would not boot: %v; upgrade to a newer version", next.From, err)
	}
	err = c.esp.Version(next.From, func(uki *os.File, _ []byte) error { return c.deps.Disk.Firmware.Check(ctx, uki) })
	if err != nil {
		return "", status.Errorf(codes.FailedPrecondition, "rollback refused: version %s, the target of the rollback: %v; upgrade to a newer version", next.From, err)
	}
	if err := c.deps.Disk.checkUnlock(ctx, func() (*os.File, error) { return c.esp.InMemory(next.From) }, force); err != nil {
		return "", status.Errorf(codes.FailedPrecondition, "rollback refused: version %s: %v", next.From, err)
	}
	saved, err := c.deps.records().SavedConfiguration(next.From)
	if err == nil {
		err = c.deps.Configuration.CheckRollback(ctx, saved, force)
	}
	if err != nil {
		return "", status.Errorf(codes.FailedPrecondition, "rollback refused: %v", err)
	}
	q, err := c.askRollback(next.From, force, by)
	if err == nil {
		err = c.drainFor(ctx, q)
	}
	if err != nil {
		return "", status.Error(codes.FailedPrecondition, err.Error())
	}
	if err := c.handle(context.WithoutCancel(ctx), event); err != nil {
		c.deps.Node.Drain.Undo(q.Operation, q.By)
		q.end()
		return "", status.Errorf(codes.FailedPrecondition, "rollback: %v", err)
	}
	return c.Record().From, nil
}
