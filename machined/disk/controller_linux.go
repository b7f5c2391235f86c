package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/disk/mkfs"
	"github.com/orlop-os/orlop/pkg/diskprobe"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/reconcile"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// Deps is the environment of a Controller.
type Deps struct {
	// Reaper runs the programs that check and create file systems, and the sandboxed process that
	// examines foreign disks.
	Reaper *supervise.Reaper
	// Mounted is called after STATE and DATA were mounted.
	Mounted func()
	// Event adds an event of the disks; Console writes a line to the console.
	Event   func(kind, message string)
	Console func(line string)
	// Mounts returns the mounts of the system that are not on its disk.
	Mounts func() []mount.Mount
	ESP    ESP
	// Crypt formats and opens encrypted volumes.
	Crypt Crypt
	// EndPhase ends the time in which the TPM releases keys. SetUp calls it before operations that
	// need no key: an attacker can have written the file systems that they check and mount.
	EndPhase func(context.Context) error
}

// ESP is the access to the partition of the boot loader.
type ESP struct {
	Path  func() string // path of the partition: "/dev/vda1"
	Check func() error  // reads the partition, and records the result for Fault
	Fault func() string // the error of the last access; empty: none
}

// Controller owns the state of the disks: it sets up STATE and DATA, examines foreign disks when
// disks are added or removed, and reports file systems with errors.
type Controller struct {
	deps    Deps
	state   *cell.Cell[State]
	problem *cell.Cell[string]
	prober  *diskprobe.Prober
	changed cell.Signal // wakes Watch: a disk or a partition was added or removed
	// setUps is the number of times that SetUp has read the disks. Watch compares it before and
	// after its own read, which can take seconds: an older result must not replace a newer one.
	setUps atomic.Uint64
}

// State is the state of the disks: topic "disks".
type State struct {
	Disks   []Disk `json:"disks"`
	Problem string `json:"problem,omitempty"` // why no disk is mounted for storage
	// Filesystems lists the file systems of the system, also those on volumes, that have errors at
	// present. It also lists STATE and DATA if they had errors before the check at this boot.
	Filesystems []FilesystemErrors `json:"filesystems,omitempty"`
}

// New returns a controller that has not read the disks.
func New(d Deps) *Controller {
	c := &Controller{deps: d, state: cell.New(State{}), problem: cell.New(""), changed: cell.NewSignal()}
	c.prober = diskprobe.New(c.probe, diskprobe.Deadline, c.Wake)
	return c
}

// State holds the state of the disks.
func (c *Controller) State() *cell.Cell[State] { return c.state }

// Problem holds the reason why no disk is mounted for storage; empty if a disk is mounted.
func (c *Controller) Problem() *cell.Cell[string] { return c.problem }

// StorageProblem returns why no disk is mounted for storage; empty if a disk is mounted.
func (c *Controller) StorageProblem() string {
	why, _ := c.problem.Get()
	return why
}

// HasState reports whether STATE is mounted. It returns true even if DATA has an error.
func (c *Controller) HasState() bool {
	if c.StorageProblem() == "" {
		return true
	}
	_, mounted, err := mount.At(paths.State)
	return err == nil && mounted
}

// Prober returns the prober, which examines foreign disks in a sandboxed process.
func (c *Controller) Prober() *diskprobe.Prober { return c.prober }

// Wake reports that a disk or a partition was added or removed.
func (c *Controller) Wake() {
	c.changed.Wake()
}

// SetUp performs the remaining disk operations and stores the result in State and Problem.
func (c *Controller) SetUp(ctx context.Context, want Config) error {
	run := func(ctx context.Context, args ...string) ([]byte, error) {
		out, err := c.deps.Reaper.Run(ctx, args...)
		if exit := (*supervise.ExitError)(nil); errors.As(err, &exit) && args[0] == paths.E2fsck {
			// e2fsck exits with 1 after repairs. Check does not treat this status as a failure, so
			// the event reports the repairs here.
			c.deps.Event("failure", err.Error())
		}
		return out, err
	}
	err := reconcile.Converge(ctx, reconcile.Config{
		Name: "disk", Report: func(r reconcile.Report) { c.deps.Event(r.Kind(), r.String()) },
		Diff: func(ctx context.Context) ([]reconcile.Op, error) {
			have, err := Read(ctx, c.examineBeforeMount())
			if err != nil {
				return nil, err
			}
			c.setUps.Add(1)
			c.state.Update(func(d State) State {
				return State{Disks: mergeDisks(have.Disks, d.Disks), Filesystems: d.Filesystems}
			})
			c.recordBeforeCheck(have)
			return c.plan(ctx, want, have, run)
		},
	})
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	c.problem.Set(problem)
	c.state.Update(func(d State) State { d.Problem = problem; return d })
	if err == nil {
		c.deps.Mounted()
	}
	return err
}

// plan returns the remaining operations. If none needs a key of the TPM, it first ends the time in
// which the TPM releases them, and fails if that fails.
func (c *Controller) plan(ctx context.Context, config Config, have Have, run mkfs.Runner) ([]reconcile.Op, error) {
	want, err := Plan(config, have)
	if err != nil {
		return nil, err
	}
	ops := withCrypt(Diff(have, want, run), c.deps.Crypt, c.recordErrors)
	if !needsKeys(ops) {
		if err := c.deps.EndPhase(ctx); err != nil {
			return nil, err
		}
	}
	return ops, nil
}

// mergeDisks returns the new data of the system disk together with the known data of the other
// disks.
func mergeDisks(read, known []Disk) []Disk {
	out := slices.Clone(read)
	for i, d := range out {
		if before := slices.IndexFunc(known, func(k Disk) bool { return k.Path == d.Path }); !d.Boot && before >= 0 {
			out[i] = known[before]
		}
	}
	return out
}

// Watch updates the state of the disks when a disk is added or removed. It examines a disk again
// after the retry delay of the prober if an examination failed.
func (c *Controller) Watch(ctx context.Context) {
	rested := time.NewTimer(0)
	defer rested.Stop()
	for {
		select {
		case <-c.changed:
		case <-rested.C:
		case <-ctx.Done():
			return
		}
		setUps := c.setUps.Load()
		have, err := Read(ctx, c.Examine(diskprobe.Cached))
		if next, waits := c.prober.Next(); waits {
			rested.Reset(max(time.Until(next), time.Second))
		} else {
			rested.Stop()
		}
		if err != nil {
			c.deps.Event("failure", err.Error())
			continue
		}
		c.store(have.Disks, setUps)
	}
}

// store stores the result of a read of Watch, which began after SetUp had read the disks setUps
// times. If SetUp has read them again since then, store drops the result and wakes Watch.
func (c *Controller) store(disks []Disk, setUps uint64) {
	c.state.Update(func(d State) State {
		if c.setUps.Load() != setUps {
			c.changed.Wake()
			return d
		}
		d.Disks = disks
		return d
	})
}

// Wipe erases the partitions with these labels, for a reset.
func (c *Controller) Wipe(ctx context.Context, labels []string) error {
	have, err := Read(ctx, nil)
	if err != nil {
		return err
	}
	return c.reset(ctx, withCrypt(Reset(have, labels, func(line string) { c.deps.Console("reset: " + line) }), c.deps.Crypt, nil))
}

// reset performs the operations of a reset, up to the first error. Only the operations that destroy
// keys do not depend on each other: an error of one keeps none of the others.
func (c *Controller) reset(ctx context.Context, ops []reconcile.Op) error {
	var failed error
	for _, op := range ops {
		if _, keys := op.(DestroyKeys); failed != nil && !keys {
			break
		}
		c.deps.Console("reset: " + op.String())
		failed = errors.Join(failed, op.Do(ctx))
	}
	return failed
}

// probe examines a foreign disk with a sandboxed process. A failure causes one event, because the
// prober then skips the disk for a while.
func (c *Controller) probe(ctx context.Context, d diskprobe.Device, f *diskprobe.File) (diskprobe.Result, error) {
	a, err := diskprobe.Probe(ctx, d, f, c.startProbe)
	if err != nil && !errors.Is(err, diskprobe.ErrNoMedium) {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		c.deps.Event("failure", fmt.Sprintf("%s: content cannot be examined: %v; the disk is treated as holding data, and examined again later", d.Path, err))
	}
	return a, err
}

// startProbe runs the sandboxed process (package diskprobe).
func (c *Controller) startProbe(ctx context.Context, input []byte, files []*os.File, maxOutput int) ([]byte, error) {
	run := c.deps.Reaper.Parser(supervise.Command{Args: []string{paths.Diskprobe}, Env: diskprobe.Environment, UID: paths.UserProbe, Nice: 10})
	return run(ctx, input, files, maxOutput)
}

// examineBeforeMount examines foreign disks until STATE is mounted, because a foreign disk may be a
// clone of the system disk (Plan rejects it). A disk that does not answer delays the boot by the
// prober's timeout at most. After the mount, only Watch examines foreign disks, so no code here
// waits for them.
func (c *Controller) examineBeforeMount() Examine {
	if _, mounted, err := mount.At(paths.State); err == nil && mounted {
		return nil
	}
	return c.Examine(diskprobe.Cached)
}

// Examine returns the examination of foreign disks for Read. fresh says whether the examination may
// return a known result.
func (c *Controller) Examine(fresh diskprobe.Freshness) Examine {
	return func(ctx context.Context, devices []diskprobe.Device) []diskprobe.DeviceResult {
		return c.prober.All(ctx, devices, fresh)
	}
}
