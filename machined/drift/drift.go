package drift

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/panics"
)

const (
	readInterval = 10 * time.Second
	// diffTimeout bounds the diff of a domain. A diff usually takes less than a second.
	diffTimeout = 5 * time.Second
)

// State is the drift of a domain, an element of topic "drift".
type State struct {
	Domain string `json:"domain"`
	// operations in the form of a dry run; empty without drift
	Operations []string `json:"operations"`
	// time of the first read with drift or with a problem
	Since time.Time `json:"since,omitzero"`
	// why the drift is unknown, or which operation is impossible
	Problem string `json:"problem,omitempty"`
}

// clean reports whether there is no drift and no problem.
func (s State) clean() bool { return len(s.Operations) == 0 && s.Problem == "" }

// ErrAbsent is the error of a source if the machine does not have its domain at present.
var ErrAbsent = errors.New("nothing is configured here")

// Source is a domain that can compute its drift.
type Source struct {
	Name string
	// Diff returns the operations. It returns an error if they are unknown or, together with
	// operations, if parts of the state cannot be restored. ErrAbsent: the machine does not have
	// this domain at present.
	Diff func(context.Context) ([]string, error)
}

// Deps is the environment of a Reader.
type Deps struct {
	Domains []Source
	// Epoch changes with the desired state, which invalidates earlier results. nil: it never
	// changes.
	Epoch func() uint64
}

// Reader computes the drift for all watchers.
type Reader struct {
	deps     Deps
	interval time.Duration // readInterval
	timeout  time.Duration // diffTimeout

	mu        sync.Mutex
	states    []State
	revision  uint64           // increases with each change
	readAt    time.Time        // time of states
	readEpoch uint64           // epoch of states
	running   chan struct{}    // closed at the end of the running refresh; nil if none runs
	limits    []limits.Bounded // of the diffs, by domain
}

// New returns a reader that has not read yet.
func New(d Deps) *Reader { return newReader(d, readInterval, diffTimeout) }

func newReader(d Deps, interval, timeout time.Duration) *Reader {
	return &Reader{deps: d, interval: interval, timeout: timeout, limits: make([]limits.Bounded, len(d.Domains))}
}

// Next waits for a revision newer than seen. A watcher wakes only for a change.
func (d *Reader) Next(ctx context.Context, seen uint64) error {
	tick := time.NewTicker(d.interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if _, revision, err := d.Get(ctx); err != nil || revision > seen {
			return err
		}
	}
}

// Get returns the drift, which is at most readInterval old, and its revision. Concurrent callers
// share a refresh.
func (d *Reader) Get(ctx context.Context) ([]State, uint64, error) {
	for {
		d.mu.Lock()
		fresh := !d.readAt.IsZero() && time.Since(d.readAt) < d.interval && d.readEpoch == d.currentEpoch()
		states, revision := d.states, d.revision
		if !fresh && d.running == nil {
			d.running = make(chan struct{})
			panics.Go("drift", d.refresh)
		}
		running := d.running
		d.mu.Unlock()
		if fresh {
			return states, revision, nil
		}
		select {
		case <-running:
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		}
	}
}

// currentEpoch returns the present epoch.
func (d *Reader) currentEpoch() uint64 {
	if d.deps.Epoch == nil {
		return 0
	}
	return d.deps.Epoch()
}

// refresh computes the drift of all domains in parallel.
func (d *Reader) refresh() {
	epoch := d.currentEpoch() // read first: a change during the diffs must make the results stale
	found := make([]*State, len(d.deps.Domains))
	var wait sync.WaitGroup
	for i, one := range d.deps.Domains {
		wait.Go(panics.Guarded("drift of "+one.Name, func() { found[i] = d.diff(one, &d.limits[i]) }))
	}
	wait.Wait()
	states := []State{}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	for _, s := range found {
		if s == nil {
			continue
		}
		if !s.clean() {
			s.Since = now
			if i := slices.IndexFunc(d.states, func(old State) bool { return old.Domain == s.Domain && !old.clean() }); i >= 0 {
				s.Since = d.states[i].Since
			}
		}
		states = append(states, *s)
	}
	same := func(a, b State) bool {
		return a.Domain == b.Domain && a.Problem == b.Problem && a.Since.Equal(b.Since) && slices.Equal(a.Operations, b.Operations)
	}
	if d.revision == 0 || !slices.EqualFunc(d.states, states, same) {
		d.states = states
		d.revision++
	}
	d.readAt, d.readEpoch = now, epoch
	close(d.running)
	d.running = nil
}

// diff computes the drift of a domain; nil if the machine does not have it. A domain that hangs (a
// disk that does not answer) is skipped until its diff returns.
func (d *Reader) diff(one Source, limit *limits.Bounded) *State {
	s := &State{Domain: one.Name, Operations: []string{}}
	// a domain may return an error together with operations
	type answer struct {
		operations []string
		err        error
	}
	found, err := limits.Read(context.Background(), limit, "drift of "+one.Name, d.timeout, func(ctx context.Context) (answer, error) {
		operations, err := one.Diff(ctx)
		return answer{operations, err}, nil
	})
	if err == nil {
		err = found.err
	}
	if errors.Is(err, ErrAbsent) {
		return nil
	}
	s.Operations = append(s.Operations, found.operations...)
	if err != nil {
		s.Problem = err.Error()
	}
	return s
}
