package diskprobe

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// How disks are examined.
const (
	// Deadline is how long one examination may take: a disk that has to spin up takes ten seconds.
	Deadline = 15 * time.Second
	// patience is how long a look that takes what is known waits for what is not.
	patience = 3 * time.Second
	// atOnce is how many disks are examined at the same time.
	atOnce = 4
	// mostStuck is how many examinations may be left behind that do not even end when they are
	// killed, because a disk does not answer the kernel.
	mostStuck = 32
	// firstRest and longestRest are how long a disk rests after its examination failed: twice as
	// long each time.
	firstRest, longestRest = time.Minute, time.Hour
)

// ErrNoMedium is what Run returns for a drive without a medium, and for a disk that has gone.
var ErrNoMedium = errors.New("no medium")

// Run examines one disk, or reads one file of it, until ctx ends. It may not return even then.
type Run func(ctx context.Context, d Device, f *File) (Result, error)

// Prober examines disks, each on its own and for a bounded time, and remembers what came of it. A
// disk whose examination failed rests before the next one, whatever happens to other disks.
type Prober struct {
	run      Run
	changed  func()
	deadline time.Duration
	patience time.Duration
	now      func() time.Time
	turns    chan struct{}

	mu    sync.Mutex
	known map[string]*record // by the disk's name and identity
	stuck int
}

// New returns a prober that examines with run. The deadline is that of one examination. changed is
// called when an examination has ended whose caller did not wait; it must be quick.
func New(run Run, deadline time.Duration, changed func()) *Prober {
	return &Prober{run: run, changed: changed, deadline: deadline, patience: patience, now: time.Now, turns: make(chan struct{}, atOnce), known: map[string]*record{}}
}

// record is what is known of one disk.
type record struct {
	written  string // when it was examined (Device.Written)
	answer   Result
	err      error // why the last examination failed; nil for none
	failures int   // in a row
	next     time.Time
	busy     bool          // an examination is under way, or was left behind
	seen     bool          // by the present look
	changed  chan struct{} // closed when err or busy changes
}

// change wakes those who wait for a record. The lock is held.
func (r *record) change() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// DeviceResult is what came of a disk.
type DeviceResult struct {
	Device Device
	Answer Result
	// why nothing is known of its content, which is treated as data; ErrNoMedium: there is no disk
	Err error
}

// Freshness says how old an answer may be.
type Freshness bool

const (
	// Cached takes the answer from before for a disk that nothing was written to since, and does not
	// wait long for others: a disk that answers late is one that has not been examined yet.
	Cached Freshness = false
	// Fresh examines anew and waits for it, as for a decision to write. Disks that rest after a
	// failure rest nevertheless.
	Fresh Freshness = true
)

// All examines disks, several at a time, and returns when each has an answer or a reason why it has
// none.
func (p *Prober) All(ctx context.Context, devices []Device, fresh Freshness) []DeviceResult {
	p.forget(devices)
	if fresh == Cached {
		patient, cancel := context.WithTimeoutCause(ctx, p.patience, errNotYet)
		defer cancel()
		ctx = patient
	}
	results := make([]DeviceResult, len(devices))
	var all sync.WaitGroup
	for i, d := range devices {
		all.Go(func() {
			a, err := p.examine(ctx, d, fresh)
			results[i] = DeviceResult{d, a, err}
		})
	}
	all.Wait()
	return results
}

// examine answers from memory, or has the disk examined.
func (p *Prober) examine(ctx context.Context, d Device, fresh Freshness) (Result, error) {
	r, err := p.turn(ctx, d)
	if err != nil {
		return Result{}, err
	}
	if a, err, known := r.answered(d, fresh, p.now()); known {
		p.mu.Unlock()
		return a, err
	}
	err = p.reserve(r)
	p.mu.Unlock()
	if err != nil {
		return Result{}, err
	}
	return p.attempt(ctx, d, nil, r)
}

// turn waits until no other caller examines a disk, and returns its record with the lock held. One
// whose examination was left behind is not waited for.
func (p *Prober) turn(ctx context.Context, d Device) (*record, error) {
	p.mu.Lock()
	r := p.recordOf(d)
	for r.busy && r.err == nil {
		changed := r.changed
		p.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrSkipped, context.Cause(ctx))
		}
		p.mu.Lock()
	}
	return r, nil
}

// File reads a file of a disk. It is subject to the same bounds as an examination, and a disk that
// rests is not asked.
func (p *Prober) File(ctx context.Context, d Device, f File) (Result, error) {
	r, err := p.turn(ctx, d)
	if err != nil {
		return Result{}, err
	}
	if r.err != nil && (r.busy || p.now().Before(r.next)) {
		err = r.err
	} else {
		err = p.reserve(r)
	}
	p.mu.Unlock()
	if err != nil {
		return Result{}, err
	}
	return p.attempt(ctx, d, &f, r)
}

// Next is when the first disk that rests may be examined again; false where none does.
func (p *Prober) Next() (time.Time, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var first time.Time
	for _, r := range p.known {
		next := r.next
		// it was left behind, and may have ended by then
		if again := p.now().Add(firstRest); r.busy && next.Before(again) {
			next = again
		}
		if r.err != nil && (first.IsZero() || next.Before(first)) {
			first = next
		}
	}
	return first, !first.IsZero()
}

// recordOf finds the record of a disk. The lock is held.
func (p *Prober) recordOf(d Device) *record {
	key := d.Name + " " + d.Identity
	r, there := p.known[key]
	if !there {
		r = &record{changed: make(chan struct{})}
		p.known[key] = r
	}
	return r
}

// forget drops the records of disks that have gone.
func (p *Prober) forget(devices []Device) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.known {
		r.seen = false
	}
	for _, d := range devices {
		p.recordOf(d).seen = true
	}
	for key, r := range p.known {
		if !r.seen && !r.busy {
			delete(p.known, key)
		}
	}
}

// answered is the answer without an examination; known is false where one is due.
func (r *record) answered(d Device, fresh Freshness, now time.Time) (a Result, err error, known bool) {
	switch {
	case r.err != nil && (r.busy || now.Before(r.next)):
		return Result{}, r.err, true
	case r.err == nil && r.answer.Disk != "" && r.written == d.Written && !d.Removable && fresh == Cached:
		return r.answer, nil, true
	}
	return Result{}, nil, false
}

// note keeps the outcome of an examination, and returns it. The lock is held.
func (r *record) note(a Result, err error, d Device, f *File, now time.Time) (Result, error) {
	defer r.change()
	switch {
	case errors.Is(err, ErrNoMedium):
		r.answer, r.err, r.failures = Result{}, nil, 0
		return Result{}, err
	case err != nil:
		r.failures++
		r.answer, r.err, r.next = Result{}, err, now.Add(rest(r.failures))
		return Result{}, err
	}
	r.err, r.failures = nil, 0
	if f == nil {
		r.answer, r.written = a, d.Written
	}
	return a, nil
}

// rest is how long a disk rests after so many failures in a row.
func rest(failures int) time.Duration {
	return min(firstRest<<min(failures-1, 10), longestRest)
}

// reserve begins an examination. The lock is held.
func (p *Prober) reserve(r *record) error {
	if p.stuck >= mostStuck {
		return fmt.Errorf("%d examinations of other disks do not end", p.stuck)
	}
	r.busy = true
	return nil
}

var (
	// ErrSkipped is the end of the caller's patience, and says nothing of the disk: it has not been
	// examined yet.
	ErrSkipped = errors.New("the examination was not waited for")
	errNotYet  = errors.New("it has not ended yet")
)

// outcome is what came of an examination.
type outcome struct {
	a   Result
	err error
}

// attempt has a disk examined. A caller that goes away takes nothing from the examination, whose
// outcome is noted for the next one.
func (p *Prober) attempt(ctx context.Context, d Device, f *File, r *record) (Result, error) {
	ended := make(chan outcome)
	go func() {
		a, err := p.supervise(context.WithoutCancel(ctx), d, f, r)
		select {
		case ended <- outcome{a, err}:
		case <-ctx.Done():
			p.changed()
		}
	}()
	select {
	case o := <-ended:
		return o.a, o.err
	case <-ctx.Done():
		return Result{}, fmt.Errorf("%w: %w", ErrSkipped, context.Cause(ctx))
	}
}

// supervise waits for the deadline and not for the examination: a process that a disk keeps in the
// kernel does not end when it is killed. Such a one is left behind, and the disk is not examined
// again before it has ended.
func (p *Prober) supervise(ctx context.Context, d Device, f *File, r *record) (Result, error) {
	p.turns <- struct{}{}
	defer func() { <-p.turns }()
	limited, cancel := context.WithTimeoutCause(ctx, p.deadline, fmt.Errorf("no answer within %v", p.deadline))
	defer cancel()
	ended := make(chan outcome, 1)
	late := false // it was left behind; the lock is held
	go func() {
		a, err := p.recovered(limited, d, f)
		if err != nil && limited.Err() != nil {
			err = context.Cause(limited)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		r.busy = false
		if late {
			p.stuck--
			r.change()
			return
		}
		a, err = r.note(a, err, d, f, p.now())
		ended <- outcome{a, err}
	}()
	select {
	case o := <-ended:
		return o.a, o.err
	case <-limited.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !r.busy { // it ended at the same time
		o := <-ended
		return o.a, o.err
	}
	late = true
	p.stuck++
	return r.note(Result{}, context.Cause(limited), d, f, p.now())
}

// recovered is run, of which a fault costs one examination and not the machine.
func (p *Prober) recovered(ctx context.Context, d Device, f *File) (a Result, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			a, err = Result{}, fmt.Errorf("the examination failed: %v", fault)
		}
	}()
	return p.run(ctx, d, f)
}
