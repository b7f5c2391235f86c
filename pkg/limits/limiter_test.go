package limits

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// TestLimiter checks the limits per caller and in total. A call of the function that Acquire
// returns frees a place in the limits, and a second call has no effect.
func TestLimiter(t *testing.T) {
	p := NewLimiter(3, 2)
	var leave []func()
	for _, c := range []struct {
		who  string
		want error
	}{{"a", nil}, {"a", nil}, {"a", ErrCallerReached}, {"b", nil}, {"b", ErrReached}, {"c", ErrReached}} {
		l, _, err := p.Acquire(c.who)
		if !errors.Is(err, c.want) {
			t.Fatalf("%s: %v, want %v", c.who, err, c.want)
		}
		leave = append(leave, l)
	}
	leave[0]()
	leave[0]()
	if p.running != 2 || p.byCaller["a"] != 1 {
		t.Errorf("%d, %v", p.running, p.byCaller)
	}
}

// TestLimiterWait checks that a waiting caller starts when another operation ends, and that it
// stops waiting when its context ends.
func TestLimiterWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewLimiter(1, 1)
		leave, err := p.Wait(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancelCause(t.Context())
		bored := errors.New("canceled by the caller")
		gaveUp, got := make(chan error, 1), make(chan func(), 1)
		go func() { _, err := p.Wait(ctx, "b"); gaveUp <- err }()
		go func() {
			leave, err := p.Wait(t.Context(), "c")
			if err != nil {
				t.Error(err)
			}
			got <- leave
		}()
		synctest.Wait()
		stop(bored)
		if err := <-gaveUp; !errors.Is(err, bored) {
			t.Error(err)
		}
		leave()
		(<-got)()
		if p.running != 0 || len(p.byCaller) != 0 {
			t.Errorf("%d, %v", p.running, p.byCaller)
		}
	})
}
