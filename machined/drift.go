package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/topic"
)

// Drift is the list of operations that would restore the configured state now: the diff of every
// domain, in the form of a dry run. Usually it is empty, because each domain performs its
// operations at once; a remaining operation failed, and the events contain the reason. Drift is
// computed only while a client watches, and at most every driftInterval, because it reads the
// disks.

const (
	driftInterval = 10 * time.Second
	// driftTimeout bounds the diff of a domain. Less than a second is usual.
	driftTimeout = 5 * time.Second
)

// driftState is the drift of a domain, an element of topic "drift".
type driftState struct {
	Domain string `json:"domain"`
	// in the form of a dry run; empty without drift
	Operations []string `json:"operations"`
	// first read with drift or with a problem
	Since time.Time `json:"since,omitzero"`
	// why the drift is unknown, or which operation is impossible
	Problem string `json:"problem,omitempty"`
}

// clean reports whether there is no drift and no problem.
func (s driftState) clean() bool { return len(s.Operations) == 0 && s.Problem == "" }

// driftSource is a domain that can compute its drift.
type driftSource struct {
	name string
	// diff returns the operations. It returns an error if they are unknown or, together with
	// operations, if parts of the state cannot be restored. errNoDomain: the machine does not have
	// this domain at present.
	diff func(context.Context) ([]string, error)
}

// drift computes the drift for all watchers.
type drift struct {
	domains  []driftSource
	interval time.Duration // driftInterval
	timeout  time.Duration // driftTimeout
	// epoch changes with the desired state, which invalidates earlier results. nil: it never
	// changes.
	epoch func() uint64

	mu        sync.Mutex
	states    []driftState
	revision  uint64          // increases with each change
	readAt    time.Time       // time of states
	readEpoch uint64          // epoch of states
	running   chan struct{}   // closed at the end of the running refresh; nil if none runs
	hung      map[string]bool // domains with an earlier diff that has not returned
}

// topic returns the topic. A watcher wakes only for a change.
func (d *drift) topic() topic.Topic {
	return topic.Topic{
		Name: "drift",
		Get: func(ctx context.Context) (any, uint64, error) {
			states, revision, err := d.get(ctx)
			return states, revision, err
		},
		Next: func(ctx context.Context, seen uint64) error {
			tick := time.NewTicker(d.interval)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
				case <-ctx.Done():
					return ctx.Err()
				}
				if _, revision, err := d.get(ctx); err != nil || revision > seen {
					return err
				}
			}
		},
	}
}

// get returns the drift, which is at most driftInterval old. Concurrent callers share a refresh.
func (d *drift) get(ctx context.Context) ([]driftState, uint64, error) {
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
func (d *drift) currentEpoch() uint64 {
	if d.epoch == nil {
		return 0
	}
	return d.epoch()
}

// refresh computes the drift of all domains in parallel.
func (d *drift) refresh() {
	of := d.currentEpoch() // read before the diffs
	found := make([]*driftState, len(d.domains))
	var wait sync.WaitGroup
	for i, one := range d.domains {
		wait.Go(panics.Guarded("drift of "+one.name, func() { found[i] = d.diff(one) }))
	}
	wait.Wait()
	states := []driftState{}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	for _, s := range found {
		if s == nil {
			continue
		}
		if !s.clean() {
			s.Since = now
			if i := slices.IndexFunc(d.states, func(old driftState) bool { return old.Domain == s.Domain && !old.clean() }); i >= 0 {
				s.Since = d.states[i].Since
			}
		}
		states = append(states, *s)
	}
	same := func(a, b driftState) bool {
		return a.Domain == b.Domain && a.Problem == b.Problem && a.Since.Equal(b.Since) && slices.Equal(a.Operations, b.Operations)
	}
	if d.revision == 0 || !slices.EqualFunc(d.states, states, same) {
		d.states = states
		d.revision++
	}
	d.readAt, d.readEpoch = now, of
	close(d.running)
	d.running = nil
}

// diff computes the drift of a domain; nil if the machine does not have it. A domain that hangs (a
// disk that does not answer) is skipped until its diff returns.
func (d *drift) diff(one driftSource) *driftState {
	s := &driftState{Domain: one.name, Operations: []string{}}
	d.mu.Lock()
	hung := d.hung[one.name]
	d.mu.Unlock()
	if hung {
		s.Problem = "an earlier read has not returned"
		return s
	}
	type answer struct {
		operations []string
		err        error
	}
	ctx, cancel := context.WithTimeout(context.Background(), d.timeout)
	defer cancel()
	answers := make(chan answer, 1)
	d.setHung(one.name, true)
	go func() {
		var a answer
		a.err = panics.Do("drift of "+one.name, func() (err error) { a.operations, err = one.diff(ctx); return err })
		d.setHung(one.name, false)
		answers <- a
	}()
	select {
	case a := <-answers:
		if errors.Is(a.err, errNoDomain) {
			return nil
		}
		s.Operations = append(s.Operations, a.operations...)
		if a.err != nil {
			s.Problem = a.err.Error()
		}
	case <-ctx.Done():
		s.Problem = fmt.Sprintf("unknown: no result within %v", d.timeout)
	}
	return s
}

func (d *drift) setHung(name string, hung bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hung == nil {
		d.hung = map[string]bool{}
	}
	d.hung[name] = hung
}

// newDrift returns the drift of the machine's domains. No domain reveals a secret: operations name
// files and parameters, and operations that write keys do not show the content.
func (m *machine) newDrift() *drift {
	d := &drift{interval: driftInterval, timeout: driftTimeout, epoch: m.driftEpoch, domains: []driftSource{{"configuration", m.configurationDrift}}}
	for _, of := range m.domains() {
		d.domains = append(d.domains, driftSource{of.name, func(ctx context.Context) ([]string, error) { return m.driftOf(ctx, of) }})
	}
	return d
}

// driftEpoch changes with the active configuration, and with every reconciliation.
func (m *machine) driftEpoch() uint64 {
	_, configured := m.config.Get()
	_, settled := m.convergence.Get()
	return configured + settled
}

// configurationDrift has no operations of its own: it returns the failures of the last
// reconciliation, of every domain, so that each failure of reconcile is visible here.
func (m *machine) configurationDrift(context.Context) ([]string, error) {
	if m.shutdown.Load() != nil {
		return nil, errNoDomain
	}
	now, _ := m.config.Get()
	s, _ := m.convergence.Get()
	if s.config != now.config {
		return []string{"activate the configuration"}, nil
	}
	if len(s.failures) > 0 {
		return nil, errors.New(strings.Join(s.failures, "; "))
	}
	return nil, nil
}
