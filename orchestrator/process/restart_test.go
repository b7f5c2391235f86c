package process

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

// TestBackoff checks the delay before a restart. The delay grows with the number of ends in
// succession. A run of at least ten minutes resets the delay.
func TestBackoff(t *testing.T) {
	for _, c := range []struct {
		before    int           // the number of ends in succession before the last run
		ran, want time.Duration // the length of the last run, and the delay
	}{
		{0, 0, time.Second},
		{1, time.Minute, 2 * time.Second},
		{6, 0, time.Minute},
		{7, 9 * time.Minute, time.Minute},
		{7, 10 * time.Minute, time.Second},
	} {
		if got := restarts.Delay(countEnds(c.before, c.ran)); got != c.want {
			t.Errorf("after a run of %s and %d ends before it: %s, want %s", c.ran, c.before, got, c.want)
		}
	}
}

// TestRestartLoop checks that a component that has ended is restarted and that its end is reported.
// After ctx is done, the component is not restarted, and RestartLoop returns the error of the
// component.
func TestRestartLoop(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	late := errors.New("late")
	runs := 0
	var told []string
	err := RestartLoop(ctx, func(context.Context) error {
		if runs++; runs == 2 {
			cancel()
			return late
		}
		return errors.New("no token")
	}, func(why string) { told = append(told, why) })
	if want := []string{"ended: no token; it restarts in 1s"}; runs != 2 || !slices.Equal(told, want) || !errors.Is(err, late) {
		t.Errorf("%d runs, want 2; reports %q; error %v, want that of the second run", runs, told, err)
	}
}
