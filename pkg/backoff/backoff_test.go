package backoff

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"
)

func TestDelay(t *testing.T) {
	b := Backoff{Min: time.Second, Max: 10 * time.Second}
	for failures, want := range map[int]time.Duration{
		-1: time.Second, 0: time.Second, 1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second,
		4: 8 * time.Second, 5: 10 * time.Second, 6: 10 * time.Second, math.MaxInt: 10 * time.Second,
	} {
		if got := b.Delay(failures); got != want {
			t.Errorf("after %d failures: got %v, want %v", failures, got, want)
		}
	}
	longest := Backoff{Min: time.Second, Max: math.MaxInt64}
	if got := longest.Delay(200); got != math.MaxInt64 {
		t.Errorf("Max is the longest duration: got %v", got)
	}
	if got := (Backoff{Min: time.Minute, Max: time.Minute}).Delay(7); got != time.Minute {
		t.Errorf("Min is Max: got %v", got)
	}
}

// TestSleep checks that a sleep lasts for the delay, and ends with its context.
func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if err := Sleep(t.Context(), time.Minute); err != nil || time.Since(began) != time.Minute {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		ended := errors.New("ended")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, ended)
		defer cancel()
		began = time.Now()
		if err := Sleep(ctx, time.Minute); !errors.Is(err, ended) || time.Since(began) != time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}
