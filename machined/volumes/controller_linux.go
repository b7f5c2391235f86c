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
	// Disks reads all disks, sorted by path. fresh waits for a new examination of each.
	Disks func(ctx context.Context, fresh bool) ([]Disk, error)
	// Changes reports that a disk was added or removed, or that its examination ended.
	Changes cell.View[struct{}]
	// Command runs a command of the orchestrator.
	Command nodespec.Command
	// Run runs a program until it exits.
	Run mkfs.Runner
	// Busy reports that services of the node run, or start, which use the parts of DATA.
	Busy func() bool
	// Records is the file with the records, on STATE.
	Records string
	// InMemory reports that the system is not installed. StorageProblem says why STATE is not
	// mounted; empty if it is.
	InMemory       bool
	StorageProblem func() string
	// Event adds an event.
	Event func(kind, message string)
}

// State is the state of the volumes.
type State struct {
	Volumes []VolumeState
	Problem string // why the state is unknown; empty if it is known

	config  Config // to which the state belongs
	settled bool   // the operations for config have been tried
	swap    uint64 // bytes of all swap in use, as the kubelet counts it
	parts   map[config.VolumeUse]string
	missing []string
}

// VolumeState is the state of a volume.
type VolumeState struct {
	Name string           `json:"name"`
	Use  config.VolumeUse `json:"use"`
	// path of its directory for pods or the system
	Path      string `json:"path,omitempty"`
	Partition string `json:"partition,omitempty"` // "/dev/vdb1"
	Disk      string `json:"disk,omitempty"`      // present or last known disk
	Size      uint64 `json:"size,omitempty"`      // of the partition, bytes
	Mounted   bool   `json:"mounted"`             // or in use as swap
	// Document is false if only the record is left: the document was removed.
	Document bool   `json:"document"`
	Problem  string `json:"problem,omitempty"`
}

// Controller leads the volumes to the configuration.
type Controller struct {
	deps   Deps
	config *cell.Cell[*Config] // nil until the first configuration
	state  *cell.Cell[State]
	list   *cell.Cell[[]VolumeState] // of state
	began  time.Time

	mu   sync.Mutex // at most one change at a time; a check of a file system can take hours
	have Have       // the last reading; guarded by mu

	// cancel ends the operations in progress. With resetting, no operation starts any more: the
	// records are for the boot after a reset.
	stopping  sync.Mutex
	cancel    context.CancelFunc
	resetting bool

	matching  sync.Mutex // guards the next field
	evaluated evaluated
}

// New returns a controller that has read nothing.
func New(d Deps) *Controller {
	return &Controller{deps: d, config: cell.New[*Config](nil), state: cell.New(State{}), list: cell.New([]VolumeState{}), began: time.Now()}
}

// State holds the state of the volumes.
func (c *Controller) State() *cell.Cell[State] { return c.state }

// List holds the states of the volumes: topic "volumes".
func (c *Controller) List() *cell.Cell[[]VolumeState] { return c.list }

// Set sets the configuration.
func (c *Controller) Set(want Config) {
	if have, _ := c.config.Get(); have == nil || !reflect.DeepEqual(*have, want) {
		c.config.Set(&want)
	}
}

// Intervals of retries.
const (
	minBackoff = 10 * time.Second
	maxBackoff = 5 * time.Minute
	// examination is the time for which a missing disk may still be examined after the start.
	examination = 20 * time.Second
)

// Run performs the operations when the configuration or the disks change, and again after a
// problem.
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

// maxRounds bounds the rounds of a convergence: a volume needs two, its partition and the rest.
const maxRounds = 8

// converge performs the operations for a configuration. The parts of DATA and swap come first,
// because the services of the node wait for them, and the check of another volume can take hours.
// Only new partitions are created in the order of the plan.
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
	for _, now := range []func(Planned) bool{awaited, func(Planned) bool { return true }} {
		if !c.settle(ctx, want, now, failed) {
			return
		}
	}
}

// start returns a context for operations, unless a reset was requested.
func (c *Controller) start(ctx context.Context) (context.Context, bool) {
	c.stopping.Lock()
	defer c.stopping.Unlock()
	ctx, c.cancel = context.WithCancel(ctx)
	if c.resetting {
		c.cancel()
	}
	return ctx, !c.resetting
}

// settle performs the operations of some volumes and publishes the state. A failure of a volume
// ends its operations only. It reports whether the state is known.
func (c *Controller) settle(ctx context.Context, want Config, now func(Planned) bool, failed map[string]string) bool {
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
		turn := slices.DeleteFunc(slices.Clone(planned.Volumes), func(v Planned) bool { return failed[v.Name] != "" || !creating && !now(v) })
		if slices.ContainsFunc(turn, func(v Planned) bool { return moves(d.volume(v)) }) && c.unsettle() {
			continue // services may have started since the reading
		}
		for _, v := range turn {
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

// moves reports whether operations move data of DATA.
func moves(ops []reconcile.Op) bool {
	return slices.ContainsFunc(ops, func(op reconcile.Op) bool { _, move := op.(Move); return move })
}

// unsettle holds back the services of the node until the next publication: none may start during a
// move. It reports whether they were free to start.
func (c *Controller) unsettle() (free bool) {
	c.state.Update(func(s State) State {
		free, s.settled = s.settled, false
		return s
	})
	return free
}

// perform performs operations up to the first failure, and returns how many succeeded.
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

// examine reads a disk again before a write.
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
	// a disk that the kernel found, and that is not examined yet, may have a volume
	if unexamined(have.Disks) != "" && time.Since(c.began) < examination {
		s.settled = false
	}
	// whether or not its disk is examined: while a machine swaps, that can take long
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

// missing returns why the node cannot run: the parts etcd and images.
func (w Want) missing(failed map[string]string) []string {
	lines := w.Missing(config.UseEtcd, config.UseImages)
	for _, v := range w.Volumes {
		if why := failed[v.Name]; why != "" && (v.Use == config.UseEtcd || v.Use == config.UseImages) && !v.Mounted {
			lines = append(lines, v.Name+": "+why)
		}
	}
	return lines
}

// DryRun returns the operations for a configuration, and the problems of its volumes.
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

// Parts returns the volume of each part of DATA that is on one.
func (c *Controller) Parts() map[config.VolumeUse]string {
	s, _ := c.state.Get()
	return s.parts
}

// Swap returns the size of the swap in use, in bytes; 0: none.
func (c *Controller) Swap() uint64 {
	s, _ := c.state.Get()
	return s.swap
}

// errPreparing holds services back until the parts of DATA are in their places.
var errPreparing = errors.New("the volumes of the configuration are being prepared")

// Hold returns why the services of a node with this configuration cannot start; nil if they can.
// Only parts of DATA hold them, and swap until its first attempt.
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
	// another volume, which may be in a long check, does not count
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

// CheckMatch rejects a configuration with an expression of a volume that cannot be evaluated.
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

// HealthProblem returns the problems of all volumes in one line, for the health; empty if there are
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
