// Package cell holds a watchable latest value.
//
// A Cell is for state that has one owner and many readers: the addresses of a link, the services'
// states, the stage of the boot. A reader that is slow, late or gone never holds up the owner and
// never sees a queue of old values: it sees the newest one, when it looks. That is why this is not
// a channel (which carries every message, and blocks) and not a sync.Cond (which cannot be waited
// on together with a context).
//
// It deliberately does not keep history (see the event log of machined for that), does not compare
// values, and does not copy them: a value given to Set must not be changed afterwards.
package cell

import (
	"context"
	"sync"
)

// Cell holds the latest value of something. Make it with New; the zero Cell is not usable. All
// methods may be called from any goroutine.
type Cell[T any] struct {
	mu      sync.Mutex
	value   T
	rev     uint64
	changed chan struct{} // closed when the next value is set, then replaced
}

// New returns a cell that holds v at revision 1.
func New[T any](v T) *Cell[T] {
	return &Cell[T]{value: v, rev: 1, changed: make(chan struct{})}
}

// Get returns the present value and its revision. Revisions begin at 1 and grow by one with every
// Set.
func (c *Cell[T]) Get() (T, uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.value, c.rev
}

// Set replaces the value and wakes everyone who waits for it. It never blocks.
func (c *Cell[T]) Set(v T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.value = v
	c.wake()
}

// Update replaces the value by what f makes of the present one, as one step. f must be quick, must
// not call the cell, and must not change the value it is given in place (a reader may hold it).
func (c *Cell[T]) Update(f func(T) T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.value = f(c.value)
	c.wake()
}

// wake is called with the lock held, after the value was replaced.
func (c *Cell[T]) wake() {
	c.rev++
	close(c.changed)
	c.changed = make(chan struct{})
}

// Watch returns a new watcher whose first Next answers at once with the present value. A watcher
// needs no closing.
func (c *Cell[T]) Watch() *Watcher[T] { return &Watcher[T]{cell: c} }

// Watcher sees the values of a cell one after the other, skipping those that were replaced before
// it looked. It is for one goroutine.
type Watcher[T any] struct {
	cell *Cell[T]
	seen uint64
}

// Next waits until the cell holds a value that this watcher has not returned yet, and returns the
// newest one with its revision. The only error is the context's.
func (w *Watcher[T]) Next(ctx context.Context) (T, uint64, error) {
	for {
		v, rev, changed := w.look()
		if rev > w.seen {
			w.seen = rev
			return v, rev, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return v, rev, ctx.Err()
		}
	}
}

// Current returns the present value at once, whether or not this watcher has returned it before. Take
// before acting on the value and wait for Changed afterwards: what is set while one acts is not
// missed.
func (w *Watcher[T]) Current() T {
	v, rev, _ := w.look()
	w.seen = rev
	return v
}

// Changed returns a channel that is closed when Next would not wait. It lets one select wait for
// several cells; after it has fired, call Next or Take, then Changed again.
func (w *Watcher[T]) Changed() <-chan struct{} {
	_, rev, changed := w.look()
	if rev > w.seen {
		ready := make(chan struct{})
		close(ready)
		return ready
	}
	return changed
}

func (w *Watcher[T]) look() (T, uint64, <-chan struct{}) {
	w.cell.mu.Lock()
	defer w.cell.mu.Unlock()
	return w.cell.value, w.cell.rev, w.cell.changed
}

// Wait returns the first value of the cell, from the present one on, for which ok returns true. The
// only error is the context's.
func Wait[T any](ctx context.Context, c *Cell[T], ok func(T) bool) (T, error) {
	w := c.Watch()
	for {
		v, _, err := w.Next(ctx)
		if err != nil || ok(v) {
			return v, err
		}
	}
}
