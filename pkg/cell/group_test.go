package cell

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestGroup checks that a change of any cell ends the wait, also a change between Mark and Wait.
func TestGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := New(1), New("x")
		g := NewGroup(a.View().Changes(), b.View().Changes())
		wait := func(later <-chan time.Time) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			return g.Wait(ctx, later)
		}
		if err := wait(nil); err != nil {
			t.Errorf("Wait before the first Mark: %v", err)
		}
		g.Mark()
		if err := wait(nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait without a change since Mark: %v", err)
		}
		for name, set := range map[string]func(){"the first cell": func() { a.Set(2) }, "the second cell": func() { b.Set("y") }} {
			set()
			if err := wait(nil); err != nil {
				t.Errorf("Wait after a change of %s: %v", name, err)
			}
			g.Mark()
			if err := wait(nil); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Wait after the change of %s and a Mark: %v", name, err)
			}
		}
		began := time.Now()
		if err := wait(time.After(time.Second)); err != nil || time.Since(began) != time.Second {
			t.Errorf("Wait with a channel that fires after a second: %v after %v", err, time.Since(began))
		}
	})
}
