package diskprobe

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/panics"
)

// Limits of examinations.
const (
	// Deadline is the timeout of an examination. It is long because a disk needs up to ten seconds
	// to spin up.
	Deadline = 15 * time.Second
	// cachedTimeout is how long a call of All with Cached waits for disks without a cached result.
	cachedTimeout = 3 * time.Second
	// maxConcurrent is the maximum number of concurrent examinations.
	maxConcurrent = 4
	// maxStuck is the maximum number of abandoned examinations. The process of such an examination
	// waits in the kernel for a disk, and therefore does not end when it is killed.
	maxStuck = 32
	// minBackoff and maxBackoff are the first and the longest delay after a failed examination of a
	// disk. The delay doubles with each failure.
	minBackoff, maxBackoff = time.Minute, time.Hour
)

// ErrNoMedium is returned by Run for a drive without a medium, and for a disk that was removed.
var ErrNoMedium = errors.New("no medium")

// Run examines a disk, or reads a file of the disk if f is not nil. It should return when ctx ends,
// but it can hang longer if the disk does not answer.
type Run func(ctx context.Context, d Device, f *File) (Result, error)

// Prober examines disks independently of each other and for a bounded time, and caches the results.
// After a failure it waits before it examines the same disk again.
type Prober struct {
	run           Run
	changed       func()
	deadline      time.Duration
	cachedTimeout time.Duration
	now           func() time.Time
	running       chan struct{} // an element per examination, until it ends or is abandoned

	mu    sync.Mutex
	known map[string]*record // by the name and identity of the disk
	stuck int                // number of abandoned examinations that have not ended
}

// New returns a prober that examines disks by calling run. deadline is the timeout of one
// examination. The prober calls changed when an examination ends after its caller has stopped
// waiting. changed must be fast.
func New(run Run, deadline time.Duration, changed func()) *Prober {
	return &Prober{run: run, changed: changed, deadline: deadline, cachedTimeout: cachedTimeout, now: time.Now, running: make(chan struct{}, maxConcurrent), known: map[string]*record{}}
}

// record is the state of one disk.
type record struct {
	written  string // Device.Written at the examination
	answer   Result
	err      error         // error of the last examination, or nil
	failures int           // consecutive
	next     time.Time     // start of the next attempt after a failure
	busy     bool          // an examination is running or abandoned
	seen     bool          // prune has found the disk in the list
	changed  chan struct{} // closed when err or busy changes
}

// change wakes the callers that wait for a record. It must be called with the lock held.
func (r *record) change() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// DeviceResult is the result of one disk.
type DeviceResult struct {
	Device Device
	Answer Result
	// The reason why the content is unknown, or nil. ErrNoMedium means that there is no disk. After
	// any other error, the caller must treat the disk as a disk with data.
	Err error
}

// Freshness selects whether All may return cached results.
type Freshness bool

const (
	// With Cached, All returns the cached result of a disk that was not written to since its
	// examination. For other disks, All waits only a short time. A disk that has not answered by
	// then gets the error ErrSkipped.
	Cached Freshness = false
	// With Fresh, All waits for a new examination, which is necessary before a write to a disk.
	// During the delay after a failed examination, All returns the error of this examination.
	Fresh Freshness = true
)

// All examines disks, several at a time, and returns when each disk has a result or an error.
func (p *Prober) All(ctx context.Context, devices []Device, fresh Freshness) []DeviceResult {
	p.prune(devices)
	if fresh == Cached {
		patient, cancel := context.WithTimeoutCause(ctx, p.cachedTimeout, errNotYet)
		defer cancel()
		ctx = patient
	}
	results := make([]DeviceResult, len(devices))
	var all sync.WaitGroup
	for i, d := range devices {
		all.Go(func() {
			var a Result
			err := panics.Do("disk "+d.Name, func() (err error) { a, err = p.examine(ctx, d, fresh); return err })
			results[i] = DeviceResult{d, a, err}
		})
	}
	all.Wait()
	return results
}

// examine returns the cached result, or examines the disk.
func (p *Prober) examine(ctx context.Context, d Device, fresh Freshness) (Result, error) {
	var a Result
	var known bool
	r, err := p.acquire(ctx, d, func(r *record) (err error) {
		if a, err, known = r.cached(d, fresh, p.now()); known {
			return err
		}
		return p.reserve(r)
	})
	if err != nil || known {
		return a, err
	}
	return p.attempt(ctx, d, nil, r)
}

// acquire waits until no other caller examines the disk d. Then it calls begin with the lock held,
// and returns the record of d and the error of begin. It does not wait for an abandoned
// examination.
func (p *Prober) acquire(ctx context.Context, d Device, begin func(*record) error) (*record, error) {
	for {
		r, busy, err := p.tryAcquire(d, begin)
		if busy == nil {
			return r, err
		}
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrSkipped, context.Cause(ctx))
		}
	}
}

// tryAcquire is acquire without waiting. If another caller examines the disk, it returns the
// channel busy, which is closed at the next change of the record.
func (p *Prober) tryAcquire(d Device, begin func(*record) error) (r *record, busy <-chan struct{}, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r = p.recordOf(d)
	if r.busy && r.err == nil {
		return nil, r.changed, nil
	}
	return r, nil, begin(r)
}

// File reads a file of a disk. The limits of an examination and the delay after a failure apply.
func (p *Prober) File(ctx context.Context, d Device, f File) (Result, error) {
	r, err := p.acquire(ctx, d, func(r *record) error {
		if r.err != nil && (r.busy || p.now().Before(r.next)) {
			return r.err
		}
		return p.reserve(r)
	})
	if err != nil {
		return Result{}, err
	}
	return p.attempt(ctx, d, &f, r)
}

// Next returns the earliest time at which a disk with a failed examination can be examined again;
// false if there is no such disk.
func (p *Prober) Next() (time.Time, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var first time.Time
	for _, r := range p.known {
		next := r.next
		// look again after minBackoff: the abandoned examination may have ended by then
		if again := p.now().Add(minBackoff); r.busy && next.Before(again) {
			next = again
		}
		if r.err != nil && (first.IsZero() || next.Before(first)) {
			first = next
		}
	}
	return first, !first.IsZero()
}

// recordOf returns the record of a disk. It must be called with the lock held.
func (p *Prober) recordOf(d Device) *record {
	key := d.Name + " " + d.Identity
	r, there := p.known[key]
	if !there {
		r = &record{changed: make(chan struct{})}
		p.known[key] = r
	}
	return r
}

// prune drops the records of removed disks.
func (p *Prober) prune(devices []Device) {
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

// cached returns the cached result or error of a disk; known is false if an examination is
// necessary.
func (r *record) cached(d Device, fresh Freshness, now time.Time) (a Result, err error, known bool) {
	switch {
	case r.err != nil && (r.busy || now.Before(r.next)):
		return Result{}, r.err, true
	case r.err == nil && r.answer.Disk != "" && r.written == d.Written && !d.Removable && fresh == Cached:
		return r.answer, nil, true
	}
	return Result{}, nil, false
}

// store stores the outcome of an examination and returns it. It must be called with the lock held.
func (r *record) store(a Result, err error, d Device, f *File, now time.Time) (Result, error) {
	defer r.change()
	switch {
	case errors.Is(err, ErrNoMedium):
		r.answer, r.err, r.failures = Result{}, nil, 0
		return Result{}, err
	case err != nil:
		r.failures++
		r.answer, r.err, r.next = Result{}, err, now.Add(retries.Delay(r.failures))
		return Result{}, err
	}
	r.err, r.failures = nil, 0
	if f == nil {
		r.answer, r.written = a, d.Written
	}
	return a, nil
}

// retries computes the delay after a number of consecutive failures.
var retries = backoff.Backoff{Min: minBackoff, Max: maxBackoff}

// reserve marks a disk as busy for a new examination. It fails if too many abandoned examinations
// have not ended. It must be called with the lock held.
func (p *Prober) reserve(r *record) error {
	if p.stuck >= maxStuck {
		return fmt.Errorf("%d examinations of other disks hang", p.stuck)
	}
	r.busy = true
	return nil
}

var (
	// ErrSkipped is returned when the caller's context ended before the examination. It does not
	// describe the disk.
	ErrSkipped = errors.New("the caller did not wait for the examination")
	errNotYet  = errors.New("it has not ended yet")
)

// outcome is the result or the error of an examination.
type outcome struct {
	a   Result
	err error
}

// attempt examines a disk. The examination continues if the caller's context ends, and its outcome
// is cached for the next caller.
func (p *Prober) attempt(ctx context.Context, d Device, f *File, r *record) (Result, error) {
	ended := make(chan outcome)
	go func() {
		var a Result
		err := panics.Do("disk "+d.Name, func() (err error) {
			a, err = p.supervise(context.WithoutCancel(ctx), d, f, r)
			return err
		})
		select {
		case ended <- outcome{a, err}:
		case <-ctx.Done():
			panics.Guarded("disk "+d.Name, p.changed)()
		}
	}()
	select {
	case o := <-ended:
		return o.a, o.err
	case <-ctx.Done():
		return Result{}, fmt.Errorf("%w: %w", ErrSkipped, context.Cause(ctx))
	}
}

// supervise waits until the examination ends or the deadline passes. After the deadline it abandons
// the examination: its process may wait in the kernel for the disk and then does not end when it is
// killed. The disk is not examined again before the abandoned examination has ended.
func (p *Prober) supervise(ctx context.Context, d Device, f *File, r *record) (Result, error) {
	p.running <- struct{}{}
	defer func() { <-p.running }()
	limited, cancel := context.WithTimeoutCause(ctx, p.deadline, fmt.Errorf("no answer within %v", p.deadline))
	defer cancel()
	ended := make(chan outcome, 1)
	abandoned := false // guarded by the lock
	go func() {
		var o outcome
		o.err = panics.Do("examination of disk "+d.Name, func() (err error) {
			o.a, err = p.runRecovered(limited, d, f)
			if err != nil && limited.Err() != nil {
				err = context.Cause(limited)
			}
			return err
		})
		o.err = panics.Do("result of disk "+d.Name, func() (err error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			r.busy = false
			if abandoned {
				p.stuck--
				r.change()
				return nil
			}
			o.a, err = r.store(o.a, o.err, d, f, p.now())
			return err
		})
		ended <- o
	}()
	select {
	case o := <-ended:
		return o.a, o.err
	case <-limited.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !r.busy { // the examination ended at the same time
		o := <-ended
		return o.a, o.err
	}
	abandoned = true
	p.stuck++
	return r.store(Result{}, context.Cause(limited), d, f, p.now())
}

// runRecovered calls run. A panic in run becomes an error of this examination.
func (p *Prober) runRecovered(ctx context.Context, d Device, f *File) (a Result, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			a, err = Result{}, fmt.Errorf("the examination failed: %v", fault)
		}
	}()
	return p.run(ctx, d, f)
}
