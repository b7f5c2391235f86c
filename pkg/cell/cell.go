// Package cell holds a latest value that readers can watch.
//
// A Cell is for state with an owner and many readers: the addresses of a link, the states of
// services, the stage of the boot. A slow or ended reader never blocks the owner and never gets a
// queue of old values: a read returns the newest value. A channel of values would queue every
// value, and would block the owner when it is full. A wait on a sync.Cond could not be ended by a
// context. A Signal is a cell without a value, for a single loop that reads the state elsewhere.
//
// A Cell does not store history (the event log of machined does), does not compare values, and does
// not copy values: the caller must not change a value after Set.
package cell

import (
	"context"
	"sync"
)

// Cell holds the latest value. New creates it; the zero Cell is not usable. All methods are safe
// for concurrent use.
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

// Get returns the current value and its revision. Revisions begin at 1 and increase by 1 with every
// Set.
func (c *Cell[T]) Get() (T, uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.value, c.rev
}

// Set replaces the value and wakes all waiting watchers. It never blocks.
func (c *Cell[T]) Set(v T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.value = v
	c.wake()
}

// Update atomically replaces the value by the result of f for the current value. f must be fast,
// must not call a method of the cell, and must not modify its argument in place, because readers
// may use the argument at the same time.
func (c *Cell[T]) Update(f func(T) T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.value = f(c.value)
	c.wake()
}

// wake wakes all waiting watchers. It must be called with the lock held, after the value was
// replaced.
func (c *Cell[T]) wake() {
	c.rev++
	close(c.changed)
	c.changed = make(chan struct{})
}

// Watch returns a new watcher. Its first Next returns the current value at once. The caller does
// not need to close a watcher.
func (c *Cell[T]) Watch() *Watcher[T] { return &Watcher[T]{load: c.load} }

func (c *Cell[T]) load() (T, uint64, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.value, c.rev, c.changed
}

// Watcher returns successive values of a cell and skips values that were replaced before a read. It
// must be used by a single goroutine.
type Watcher[T any] struct {
	load func() (T, uint64, <-chan struct{})
	seen uint64
}

// Next waits until the cell holds a value that this watcher has not returned yet, and returns the
// newest value with its revision. The only error is that of the context.
func (w *Watcher[T]) Next(ctx context.Context) (T, uint64, error) {
	for {
		v, rev, changed := w.load()
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

// Current returns the current value at once, even if this watcher has returned it before. If the
// caller acts on the result and then waits for Changed, it misses no Set in between.
func (w *Watcher[T]) Current() T {
	v, rev, _ := w.load()
	w.seen = rev
	return v
}

// Changed returns a channel that is closed when the cell holds a value that this watcher has not
// returned yet: Next would then return at once. With it, a select statement can wait for several
// cells. After the channel is closed, call Next or Current, then Changed again.
func (w *Watcher[T]) Changed() <-chan struct{} {
	_, rev, changed := w.load()
	if rev > w.seen {
		ready := make(chan struct{})
		close(ready)
		return ready
	}
	return changed
}

// View is a read-only form of a cell, for a reader that needs only a part of the value. The view of
// Map converts each value at the time of the read. The zero View is not usable.
type View[T any] struct {
	load func() (T, uint64, <-chan struct{})
}

// View returns a view of the unconverted values.
func (c *Cell[T]) View() View[T] { return View[T]{load: c.load} }

// Map returns a view of a cell. A view has the revisions of the cell, so two successive values of
// the view can be equal. convert must not modify its argument, because other readers can hold it.
func Map[A, B any](c *Cell[A], convert func(A) B) View[B] {
	return View[B]{load: func() (B, uint64, <-chan struct{}) {
		v, rev, changed := c.load()
		return convert(v), rev, changed
	}}
}

// Changes returns a view with the same revisions and an empty struct as its value, for a reader
// that only waits for changes.
func (v View[T]) Changes() View[struct{}] {
	return View[struct{}]{load: func() (struct{}, uint64, <-chan struct{}) {
		_, rev, changed := v.load()
		return struct{}{}, rev, changed
	}}
}

// Get returns the current value and its revision.
func (v View[T]) Get() (T, uint64) {
	value, rev, _ := v.load()
	return value, rev
}

// Watch returns a new watcher, as Cell.Watch does.
func (v View[T]) Watch() *Watcher[T] { return &Watcher[T]{load: v.load} }

// Wait waits until ok returns true for the value of the cell, beginning with the current value, and
// returns this value. The only error is that of the context.
func Wait[T any](ctx context.Context, c *Cell[T], ok func(T) bool) (T, error) {
	w := c.Watch()
	for {
		v, _, err := w.Next(ctx)
		if err != nil || ok(v) {
			return v, err
		}
	}
}
