package volumes

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disk/mkfs"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/nodespec/diskmatch"
	"github.com/orlop-os/orlop/pkg/reconcile"
)

// Deps is the environment of a Controller.
type Deps struct {
	// Disks returns all disks, sorted by path. With fresh, it examines each disk again before it
	// returns.
	Disks func(ctx context.Context, fresh bool) ([]Disk, error)
	// Changes changes when a disk is added or removed, or when the examination of a disk ends.
	Changes cell.View[struct{}]
	// Command runs a command of the orchestrator.
	Command nodespec.Command
	// Run runs a program until it exits.
	Run mkfs.Runner
	// Busy reports whether services of the node run or start. These services use the parts of DATA.
	Busy func() bool
	// Records is the file with the records, on STATE.
	Records string
	// InMemory is true if the system runs from memory and is not installed. StorageProblem returns
	// the reason for which STATE is not mounted; "" if it is mounted.
	InMemory       bool
	StorageProblem func() string
	// Event adds an event.
	Event func(kind, message string)
}

// State is the published state of the volumes.
type State struct {
	Volumes []VolumeState
	Problem string // reason for which the state is unknown; "" if it is known

	config  Config // configuration to which the state belongs
	settled bool   // true after the operations for config have been tried
	swap    uint64 // size of all swap in use, in bytes, as the kubelet counts it
	parts   map[config.VolumeUse]string
	missing []string
}

// VolumeState is the state of a volume.
type VolumeState struct {
	Name string           `json:"name"`
	Use  config.VolumeUse `json:"use"`
	// path of the directory that pods or the system use
	Path      string `json:"path,omitempty"`
	Partition string `json:"partition,omitempty"` // "/dev/vdb1"
	Disk      string `json:"disk,omitempty"`      // present or last known disk, for operators
	Size      uint64 `json:"size,omitempty"`      // of the partition, bytes
	Mounted   bool   `json:"mounted"`             // mounted, or in use as swap
	// Document is false if the configuration has no document of the volume any more, only the
	// record.
	Document bool   `json:"document"`
	Problem  string `json:"problem,omitempty"`
}

// Controller performs the operations that bring the volumes to the configured state.
type Controller struct {
	deps   Deps
	config *cell.Cell[*Config] // nil until the first configuration
	state  *cell.Cell[State]
	list   *cell.Cell[[]VolumeState] // the volumes of state
	began  time.Time

	mu   sync.Mutex // serializes changes; a check of a file system can hold it for hours
	have Have       // last state that was read; guarded by mu

	// stopping guards cancel and resetting. cancel ends the operations in progress. If resetting is
	// true, no operation starts any more, because PrepareReset has changed the records for the boot
	// after the reset.
	stopping  sync.Mutex
	cancel    context.CancelFunc
	resetting bool

	matching  sync.Mutex // guards the next field
	evaluated evaluated
}

// New returns a Controller. It reads nothing before Run.
func New(d Deps) *Controller {
	return &Controller{deps: d, config: cell.New[*Config](nil), state: cell.New(State{}), list: cell.New([]VolumeState{}), began: time.Now()}
}

// State returns the cell with the state of the volumes.
func (c *Controller) State() *cell.Cell[State] { return c.state }

// List returns the cell with the volumes: topic "volumes".
func (c *Controller) List() *cell.Cell[[]VolumeState] { return c.list }

// Set sets the desired configuration. It does nothing if the configuration has not changed.
func (c *Controller) Set(want Config) {
	if have, _ := c.config.Get(); have == nil || !reflect.DeepEqual(*have, want) {
		c.config.Set(&want)
	}
}

// Intervals of retries.
const (
	minBackoff = 10 * time.Second
	maxBackoff = 5 * time.Minute
	// examination is the time after the start during which the examination of a disk may still run.
	// Until then, a volume may be on a disk that is not examined yet.
	examination = 20 * time.Second
)

// Run performs the operations whenever the configuration or the disks change. After a problem, it
// retries with back-off. It returns when ctx ends.
func (c *Controller) Run(ctx context.Context) {
	configs, disks := c.config.Watch(), c.deps.Changes.Watch()
	failures := 0
	for {
		disks.Current()
		var again <-chan time.Time
		if want := configs.Current(); want != nil {
			c.converge(ctx, *want)
			if s, _ := c.state.Get(); s.retry() {
				failures++
				again = time.After(backoff.Backoff{Min: minBackoff, Max: maxBackoff}.Delay(failures))
			} else {
				failures = 0
			}
		}
		select {
		case <-configs.Changed():
			failures = 0
		case <-disks.Changed():
		case <-again:
		case <-ctx.Done():
			return
		}
	}
}

// retry reports whether a later attempt may have another result.
func (s State) retry() bool {
	for _, v := range s.Volumes {
		if v.Problem != "" {
			return true
		}
	}
	return s.Problem != "" || !s.settled
}

// maxRounds is the largest number of rounds in which settle must converge. A volume needs two: one
// for its partition, and one for the rest.
const maxRounds = 8

// converge performs the operations for a configuration. It first prepares the parts of DATA and
// swap, because the services of the node wait for them, and the check of another volume can take
// hours. While partitions must be created, all volumes follow the order of the plan instead.
func (c *Controller) converge(ctx context.Context, want Config) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, started := c.start(ctx)
	if !started {
		return
	}
	defer c.cancel()
	failed := map[string]string{}
	awaited := func(v Planned) bool { return v.awaited() }
	for _, included := range []func(Planned) bool{awaited, func(Planned) bool { return true }} {
		if !c.settle(ctx, want, included, failed) {
			return
		}
	}
}

// start returns a context for operations, and reports whether operations may start. They may not
// start after a request for a reset.
func (c *Controller) start(ctx context.Context) (context.Context, bool) {
	c.stopping.Lock()
	defer c.stopping.Unlock()
	ctx, c.cancel = context.WithCancel(ctx)
	if c.resetting {
		c.cancel()
	}
	return ctx, !c.resetting
}

// settle performs the operations of the volumes for which the function included returns true, and
// publishes the state. After a failed operation, settle skips the remaining operations of the same
// volume and records the error in failed. It returns true if it has published the state.
func (c *Controller) settle(ctx context.Context, want Config, included func(Planned) bool, failed map[string]string) bool {
	for range maxRounds {
		have, err := c.read(ctx, want)
		if err != nil {
			c.deps.Event("failure", "volumes: "+err.Error())
			c.state.Update(func(s State) State { s.Problem = err.Error(); return s })
			return false
		}
		c.have = have
		planned := Plan(want, have, uuid.New)
		done := 0
		d := newDiffer(have, planned, c.tools())
		creating := slices.ContainsFunc(planned.Volumes, func(v Planned) bool { return v.Usable && v.Partition.Path == "" })
		batch := slices.DeleteFunc(slices.Clone(planned.Volumes), func(v Planned) bool { return failed[v.Name] != "" || !creating && !included(v) })
		if slices.ContainsFunc(batch, func(v Planned) bool { return moves(d.volume(v)) }) && c.unsettle() {
			continue // services may have started after c.read, so read again whether they run
		}
		for _, v := range batch {
			n, err := c.perform(ctx, d.volume(v))
			if done += n; err != nil {
				failed[v.Name] = err.Error()
			}
		}
		if done == 0 {
			c.publish(want, have, planned, failed)
			return true
		}
	}
	c.state.Update(func(s State) State { s.Problem = "the volumes do not converge"; return s })
	return false
}

// moves reports whether one of the operations moves data from DATA to a volume.
func moves(ops []reconcile.Op) bool {
	return slices.ContainsFunc(ops, func(op reconcile.Op) bool { _, move := op.(Move); return move })
}

// unsettle prevents the start of services of the node until the next publish, because no service
// may use data while the data move. free reports whether services could start before the call.
func (c *Controller) unsettle() (free bool) {
	c.state.Update(func(s State) State {
		free, s.settled = s.settled, false
		return s
	})
	return free
}

// perform performs operations up to the first failure. It returns the number of operations that
// succeeded.
func (c *Controller) perform(ctx context.Context, ops []reconcile.Op) (done int, err error) {
	for _, op := range ops {
		began, err := time.Now(), ctx.Err()
		if err == nil {
			err = op.Do(ctx)
		}
		r := reconcile.Report{Domain: "volumes", Op: op.String(), Err: err, Took: time.Since(began)}
		c.deps.Event(r.Kind(), r.String())
		if err != nil {
			return done, fmt.Errorf("cannot %s: %w", op, err)
		}
		done++
	}
	return done, nil
}

func (c *Controller) tools() Tools {
	return Tools{Run: c.deps.Run, Examine: c.examine, Records: c.deps.Records}
}

// examine examines a disk again, immediately before a write.
func (c *Controller) examine(ctx context.Context, path string) (Disk, error) {
	disks, err := c.deps.Disks(ctx, true)
	if err != nil {
		return Disk{}, err
	}
	for _, d := range disks {
		if d.Path == path {
			return d, nil
		}
	}
	return Disk{}, errors.New("the disk was disconnected")
}

// publish sets the state after the operations.
func (c *Controller) publish(want Config, have Have, planned Want, failed map[string]string) {
	s := State{Volumes: []VolumeState{}, config: want, settled: true, parts: map[config.VolumeUse]string{}, missing: planned.missing(failed)}
	// A disk that is not examined yet may have a volume, so the services wait.
	if unexamined(have.Disks) != "" && time.Since(c.began) < examination {
		s.settled = false
	}
	// All swap counts, also on a disk that is not examined: the examination can take long while a
	// machine swaps.
	for _, a := range have.Areas {
		s.swap += a.Size
	}
	for _, v := range planned.Volumes {
		one := VolumeState{Name: v.Name, Use: v.Use, Partition: v.Partition.Path, Size: v.Partition.Size, Mounted: v.Mounted, Document: v.Document, Problem: v.Problem, Disk: v.Record.Disk}
		if v.Disk.Path != "" {
			one.Disk = v.Disk.String()
		}
		if why := failed[v.Name]; why != "" {
			one.Problem = why
		}
		if all := places(v.Volume); len(all) > 0 {
			one.Path = all[0].path
		} else if v.Mounted && v.Use == config.UseStorageClass {
			one.Path = ClassDir(v.Name)
		}
		if v.Use.IsPart() && v.Record.Placed {
			s.parts[v.Use] = v.Name
		}
		s.Volumes = append(s.Volumes, one)
	}
	c.state.Set(s)
	c.list.Set(s.Volumes)
}

// missing returns the reasons for which the node cannot run: the problems of the volumes for etcd
// and images.
func (w Want) missing(failed map[string]string) []string {
	lines := w.Missing(config.UseEtcd, config.UseImages)
	for _, v := range w.Volumes {
		if why := failed[v.Name]; why != "" && (v.Use == config.UseEtcd || v.Use == config.UseImages) && !v.Mounted {
			lines = append(lines, v.Name+": "+why)
		}
	}
	return lines
}

// DryRun returns the operations that a configuration would cause, and the problems of its volumes.
// It changes nothing.
func (c *Controller) DryRun(ctx context.Context, want Config) (ops []reconcile.Op, problems []string, err error) {
	have, err := c.read(ctx, want)
	if err != nil {
		return nil, nil, err
	}
	planned := Plan(want, have, uuid.New)
	for _, v := range planned.Volumes {
		if v.Problem != "" {
			problems = append(problems, "volume "+v.Name+": "+v.Problem)
		}
	}
	return Diff(have, planned, Tools{}), problems, nil
}

// Parts returns the name of the volume for each part of DATA that is on a volume.
func (c *Controller) Parts() map[config.VolumeUse]string {
	s, _ := c.state.Get()
	return s.parts
}

// Swap returns the size of the swap in use, in bytes; 0 if no swap is in use.
func (c *Controller) Swap() uint64 {
	s, _ := c.state.Get()
	return s.swap
}

// errPreparing means that the services must wait until the parts of DATA are on their volumes.
var errPreparing = errors.New("the volumes of the configuration are being prepared")

// Hold returns the reason for which the services of a node with this configuration cannot start;
// nil if they can start. The services wait for the parts of DATA, and for the first attempt to use
// swap. They do not wait for other volumes.
func (c *Controller) Hold(want Config) error {
	records, err := readRecords(c.deps.Records)
	if err != nil {
		return err
	}
	if len(want.awaited()) == 0 && !slices.ContainsFunc(records, func(r Record) bool { return r.Use.IsPart() && r.Placed }) {
		return nil
	}
	s, _ := c.state.Get()
	switch {
	// only the awaited volumes are compared, because the check of another volume can take hours
	case !s.settled || !reflect.DeepEqual(s.config.awaited(), want.awaited()):
		if s.Problem != "" {
			return errors.New(s.Problem)
		}
		return errPreparing
	case len(s.missing) > 0:
		return errors.New(strings.Join(s.missing, "; "))
	}
	return nil
}

// CheckMatch returns an error for a configuration in which the match expression of a volume cannot
// be evaluated.
func (c *Controller) CheckMatch(ctx context.Context, next *config.Config) error {
	for _, v := range next.Volumes {
		if v.Spec.Disk.Match == "" {
			continue
		}
		_, err := diskmatch.Evaluate(ctx, c.deps.Command, v.Spec.Disk.Match, nil)
		if e := (*diskmatch.ExpressionError)(nil); errors.As(err, &e) {
			return config.Problems{e.Problem(next, config.VolumePath(v.Metadata.Name)+".spec.disk.match")}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// HealthProblem returns the problems of all volumes in one line for the health; "" if there are
// none.
func (s State) HealthProblem() string {
	var lines []string
	if s.Problem != "" {
		lines = append(lines, s.Problem)
	}
	for _, v := range s.Volumes {
		if v.Problem != "" {
			lines = append(lines, fmt.Sprintf("%s (%s): %s", v.Name, v.Use, v.Problem))
		}
	}
	return strings.Join(lines, "; ")
}
