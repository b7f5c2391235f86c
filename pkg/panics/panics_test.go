package panics

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"
)

// recorded sets a recorder for the duration of a test. It returns a function that returns the
// recorded panics.
func recorded(t *testing.T) func() []*Error {
	var mu sync.Mutex
	var all []*Error
	OnPanic(func(e *Error) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, e)
	})
	t.Cleanup(func() { OnPanic(nil) })
	return func() []*Error {
		mu.Lock()
		defer mu.Unlock()
		return append([]*Error(nil), all...)
	}
}

func TestDo(t *testing.T) {
	all := recorded(t)
	want := errors.New("an ordinary failure")
	if err := Do("a", func() error { return want }); err != want || len(all()) != 0 {
		t.Errorf("%v, %d recorded", err, len(all()))
	}
	for name, f := range map[string]func() error{
		"a long text":   func() error { panic(strings.Repeat("x", 10_000)) },
		"a nil pointer": func() error { var p *Error; return errors.New(p.Where) },
		"panic(nil)":    func() error { panic(nil) },
		"a deep stack":  func() error { return deep(500) },
	} {
		before := len(all())
		err := Do("task "+name, f)
		var caught *Error
		if !errors.As(err, &caught) || len(all()) != before+1 || all()[before] != caught {
			t.Errorf("%s: %v, %d recorded", name, err, len(all())-before)
			continue
		}
		if caught.Where != "task "+name || len(caught.Value) > maxValue+4 || len(caught.Stack) > MaxStack+4 || !strings.Contains(caught.Stack, "panics") {
			t.Errorf("%s: %+v", name, caught)
		}
	}
}

func deep(n int) error {
	if n == 0 {
		panic("at the bottom")
	}
	return deep(n - 1)
}

// TestNoRecorder checks that Do does not recover a panic if no recorder is set.
func TestNoRecorder(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("Do has recovered a panic although no recorder is set")
		}
	}()
	_ = Do("a", func() error { panic("x") })
}

// TestRestarter checks that a panicking task runs again until it returns. BackingOff is called with
// true before each delay, and with false after it.
func TestRestarter(t *testing.T) {
	all := recorded(t)
	var backingOff []bool
	runs, ended := 0, make(chan struct{})
	k := Restarter{MinBackoff: time.Millisecond, MaxBackoff: 4 * time.Millisecond, BackingOff: func(where string, r bool) { backingOff = append(backingOff, r) }}
	go func() {
		defer close(ended)
		k.Run(t.Context(), "a", func(context.Context) {
			if runs++; runs < 5 {
				panic("again")
			}
		})
	}()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("Run does not return after the task has returned")
	}
	if runs != 5 || len(all()) != 4 || len(backingOff) != 8 || !backingOff[0] || backingOff[7] {
		t.Errorf("%d runs, %d recorded, BackingOff got %v", runs, len(all()), backingOff)
	}
	// A task with a canceled context does not run again.
	ctx, cancel := context.WithCancel(t.Context())
	runs = 0
	Restarter{MinBackoff: time.Hour, MaxBackoff: time.Hour}.Run(ctx, "b", func(context.Context) {
		runs++
		cancel()
		panic("x")
	})
	if runs != 1 {
		t.Errorf("the task ran %d times, want 1", runs)
	}
}
