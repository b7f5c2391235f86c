package cell

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"
)

func TestFirstNextAnswersAtOnce(t *testing.T) {
	c := New("a")
	v, rev, err := c.Watch().Next(t.Context())
	if v != "a" || rev != 1 || err != nil {
		t.Fatalf("Next = %q, %d, %v; want a, 1, nil", v, rev, err)
	}
}

func TestSlowWatcherSeesOnlyTheNewest(t *testing.T) {
	c := New(0)
	w := c.Watch()
	for i := 1; i <= 100; i++ {
		c.Set(i)
	}
	if v, rev, _ := w.Next(t.Context()); v != 100 || rev != 101 {
		t.Fatalf("Next = %d at revision %d; want 100 at 101", v, rev)
	}
	select {
	case <-w.Changed():
		t.Fatal("Changed fires although Next has returned the newest value")
	default:
	}
	c.Set(7)
	<-w.Changed()
	if v, _, _ := w.Next(t.Context()); v != 7 {
		t.Fatalf("Next = %d; want 7", v)
	}
}

// TestCurrent checks that a value set while the caller acts on the previous value is not missed,
// and that Changed does not fire for a value that Current has returned.
func TestCurrent(t *testing.T) {
	c := New("a")
	w := c.Watch()
	if got := w.Current(); got != "a" {
		t.Errorf("Current returned %q", got)
	}
	if got := w.Current(); got != "a" {
		t.Errorf("the second call of Current returned %q", got)
	}
	select {
	case <-w.Changed():
		t.Error("Changed fires although Current has returned the value")
	default:
	}
	c.Set("b")
	select {
	case <-w.Changed():
	default:
		t.Error("Changed does not fire after Set")
	}
	if got := w.Current(); got != "b" {
		t.Errorf("Current returned %q, want the new value", got)
	}
}

func TestNextEndsWithItsContext(t *testing.T) {
	c := New(1)
	w := c.Watch()
	if _, _, err := w.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, _, err := w.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("error %v; want context.DeadlineExceeded", err)
	}
}

func TestWait(t *testing.T) {
	c := New(1)
	go c.Update(func(v int) int { return v + 4 })
	v, err := Wait(t.Context(), c, func(v int) bool { return v == 5 })
	if v != 5 || err != nil {
		t.Fatalf("Wait = %d, %v; want 5, nil", v, err)
	}
}

// TestManyWatchers is for the race detector: every watcher reaches the last value, with increasing
// revisions.
func TestManyWatchers(t *testing.T) {
	const last = 500
	c := New(0)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			w := c.Watch()
			for before := uint64(0); ; {
				v, rev, err := w.Next(t.Context())
				if err != nil || rev <= before {
					t.Errorf("value %d: revision %d after %d, error %v", v, rev, before, err)
					return
				}
				before = rev
				if v == last {
					return
				}
			}
		})
	}
	for range last {
		group.Go(func() { c.Update(func(v int) int { return v + 1 }) })
	}
	group.Wait()
}

// TestMap checks that a view converts the values of its cell and reports the cell's changes.
func TestMap(t *testing.T) {
	c := New("a")
	v := Map(c, func(s string) int { return len(s) })
	w := v.Watch()
	if got, rev := v.Get(); got != 1 || rev != 1 || w.Current() != 1 {
		t.Errorf("%d at revision %d", got, rev)
	}
	changed := w.Changed()
	c.Set("abc")
	<-changed
	if got, rev, err := w.Next(t.Context()); got != 3 || rev != 2 || err != nil {
		t.Errorf("%d at revision %d, %v", got, rev, err)
	}
}
