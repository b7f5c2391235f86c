package wear

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/panics"
)

// Target is a disk with a log that the Controller may read.
type Target struct {
	Path      string // "/dev/nvme0n1"
	Model     string
	Serial    string
	WWID      string
	Transport string // "nvme" or "sata"; the Controller does not read disks with other transports
}

// key returns the key of the disk in the record; "" if the disk has neither a serial number nor a
// WWID.
func (t Target) key() string {
	if t.WWID == "" && t.Serial == "" {
		return ""
	}
	return strings.Join([]string{t.Model, t.Serial, t.WWID}, " ")
}

// Transports of disks that report wear.
const (
	NVMe = "nvme"
	SATA = "sata"
)

// Disk is the wear of a disk: topic "wear".
type Disk struct {
	Path   string `json:"path"`
	Model  string `json:"model,omitempty"`
	Serial string `json:"serial,omitempty"`
	Log
	Problem string `json:"problem,omitempty"` // reason for which the disk must be replaced
	Remark  string `json:"remark,omitempty"`  // advice: plan a replacement, or check a condition
	Unknown string `json:"unknown,omitempty"` // error of the last read
}

// OK reports whether the disk has no problem. A disk with only a remark is OK.
func (d Disk) OK() bool { return d.Problem == "" }

// String returns the path, the serial number, the problem and the remark.
func (d Disk) String() string {
	name := d.Path
	if d.Serial != "" {
		name += " (serial " + d.Serial + ")"
	}
	return name + ": " + strings.Trim(d.Problem+"; "+d.Remark, "; ")
}

// Warnings returns the disks with a problem or a remark.
func Warnings(all []Disk) (list []Disk) {
	for _, d := range all {
		if d.Problem != "" || d.Remark != "" {
			list = append(list, d)
		}
	}
	return list
}

// Deps is the environment of a Controller.
type Deps struct {
	Disks cell.View[[]Target]
	// Read reads the log of a disk. It can hang, if the disk does not respond.
	Read func(t Target) (Log, error)
	// File returns the path of the file with the records; "" if STATE is not mounted.
	File func() string
	Now  func() time.Time
	// Event adds an event.
	Event func(kind, message string)
}

const (
	interval = time.Hour
	// timeout is the longest time to read a disk. It exceeds the kernel's timeout of a command,
	// because a read consists of up to three commands.
	timeout = 3 * commandTimeout
	// maxRecords is the largest number of stored records. Records of absent disks beyond it are
	// dropped.
	maxRecords = 256
)

// Controller reads the logs of the disks once an hour and publishes the wear.
type Controller struct {
	deps  Deps
	disks *cell.Cell[[]Disk]
	// reads bounds the reads of each disk; only Run uses it
	reads map[Target]*limits.Bounded
}

// New returns a Controller. It reads no disk before Run.
func New(d Deps) *Controller {
	return &Controller{deps: d, disks: cell.New([]Disk{}), reads: map[Target]*limits.Bounded{}}
}

// Disks returns the cell with the wear of the disks: topic "wear".
func (c *Controller) Disks() *cell.Cell[[]Disk] { return c.disks }

// Run reads all disks at once, then whenever a disk is added or removed, and then once per
// interval. It returns when ctx ends.
func (c *Controller) Run(ctx context.Context) {
	watch := c.deps.Disks.Watch()
	var last []Target
	due := time.Now()
	for {
		targets := slices.DeleteFunc(slices.Clone(watch.Current()), func(t Target) bool { return t.Transport != NVMe && t.Transport != SATA })
		if now := time.Now(); !slices.Equal(targets, last) || !now.Before(due) {
			c.round(ctx, targets)
			last, due = targets, now.Add(interval)
		}
		timer := time.NewTimer(time.Until(due))
		select {
		case <-watch.Changed():
		case <-timer.C:
		case <-ctx.Done():
		}
		if timer.Stop(); ctx.Err() != nil {
			return
		}
	}
}

// round reads all disks in parallel, stores the changed records, and publishes the result.
func (c *Controller) round(ctx context.Context, targets []Target) {
	maps.DeleteFunc(c.reads, func(t Target, _ *limits.Bounded) bool { return !slices.Contains(targets, t) })
	records, err := c.load()
	if err != nil {
		c.deps.Event("failure", "wear: "+err.Error())
	}
	logs, errs := make([]Log, len(targets)), make([]error, len(targets))
	var wg sync.WaitGroup
	for i, t := range targets {
		if c.reads[t] == nil {
			c.reads[t] = new(limits.Bounded)
		}
		b := c.reads[t]
		wg.Go(panics.Guarded("wear of disk "+t.Path, func() {
			logs[i], errs[i] = limits.Read(ctx, b, "wear of disk "+t.Path, timeout, func(context.Context) (Log, error) { return c.deps.Read(t) })
		}))
	}
	wg.Wait()
	if ctx.Err() != nil {
		return
	}
	before, _ := c.disks.Get()
	now, kept, disks := c.deps.Now(), absent(records, targets), []Disk{}
	for i, t := range targets {
		d := Disk{Path: t.Path, Model: t.Model, Serial: t.Serial, Log: logs[i]}
		r, known := records[t.key()]
		if errs[i] == nil {
			r, known = next(r, known, d.Errors, now), true
			d.Problem, d.Remark = judge(d.Log, r, now)
		} else {
			d = stale(before, d)
			d.Unknown = errs[i].Error()
		}
		if t.key() != "" && known {
			kept[t.key()] = r
		}
		disks = append(disks, d)
	}
	if file := c.deps.File(); file != "" && err == nil && !maps.EqualFunc(records, kept, Record.equal) {
		if err := writeRecords(file, kept); err != nil {
			c.deps.Event("failure", "wear: "+err.Error())
		}
	}
	c.report(before, disks)
	c.disks.Set(disks)
}

// absent returns the records of the disks that are not present. They are retained, because a
// failing disk can disappear for a time or appear late at boot. maxRecords bounds their number,
// because a hostile disk can choose a new serial number each time.
func absent(records map[string]Record, present []Target) map[string]Record {
	out := map[string]Record{}
	for _, key := range slices.Sorted(maps.Keys(records)) {
		if len(out)+len(present) < maxRecords && !slices.ContainsFunc(present, func(t Target) bool { return t.key() == key }) {
			out[key] = records[key]
		}
	}
	return out
}

func (r Record) equal(o Record) bool { return r.Errors == o.Errors && r.Grew.Equal(o.Grew) }

// load reads the records. If the file is unreadable, load returns an error; the file is then not
// replaced, and the growth of errors is unknown.
func (c *Controller) load() (map[string]Record, error) {
	file := c.deps.File()
	if file == "" {
		return nil, nil
	}
	return readRecords(file)
}

// stale returns the last known state of a disk whose read has failed; d if there is none.
func stale(before []Disk, d Disk) Disk {
	i := slices.IndexFunc(before, func(o Disk) bool { return o.Path == d.Path && o.Model == d.Model && o.Serial == d.Serial })
	if i < 0 {
		return d
	}
	return before[i]
}

// report adds an event for each new problem and remark.
func (c *Controller) report(before, now []Disk) {
	for _, d := range Warnings(now) {
		if !slices.ContainsFunc(before, func(o Disk) bool { return o.String() == d.String() }) {
			c.deps.Event("failure", "disk "+d.String())
		}
	}
}
