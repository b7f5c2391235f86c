package limits

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestRead checks that a read returns its result, and that a read that hangs fails after its time
// limit. From then on, no other read starts until this read has returned.
func TestRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Bounded
		var started atomic.Int32
		read := func(ctx context.Context, f func(context.Context) (int, error)) (int, error) {
			return Read(ctx, &b, "test", time.Second, func(ctx context.Context) (int, error) { started.Add(1); return f(ctx) })
		}
		seven := func(context.Context) (int, error) { return 7, nil }
		if n, err := read(t.Context(), seven); n != 7 || err != nil {
			t.Errorf("Read = %d, %v; want 7", n, err)
		}
		failure := errors.New("input/output error")
		if _, err := read(t.Context(), func(context.Context) (int, error) { return 0, failure }); !errors.Is(err, failure) {
			t.Errorf("a failed read: %v", err)
		}
		answers := make(chan struct{})
		hangs := func(context.Context) (int, error) { <-answers; return 0, nil }
		leaving, leave := context.WithCancel(t.Context())
		leave()
		if _, err := read(leaving, hangs); !errors.Is(err, context.Canceled) {
			t.Errorf("a canceled read: %v", err)
		}
		if n, err := read(t.Context(), seven); n != 7 || err != nil {
			t.Errorf("while another read is within its time limit: %d, %v; want 7", n, err)
		}
		start := time.Now()
		if _, err := read(t.Context(), hangs); !errors.Is(err, ErrUnknown) || !strings.HasSuffix(err.Error(), "no result within 1s") || time.Since(start) != time.Second {
			t.Errorf("a read that hangs: %v after %v", err, time.Since(start))
		}
		synctest.Wait()
		before := started.Load()
		if _, err := read(t.Context(), seven); !errors.Is(err, ErrUnknown) || !strings.HasSuffix(err.Error(), "an earlier read has not returned") || started.Load() != before {
			t.Errorf("while another read exceeds its time limit: %v, %d reads started", err, started.Load()-before)
		}
		close(answers)
		synctest.Wait()
		if n, err := read(t.Context(), seven); n != 7 || err != nil {
			t.Errorf("after the read that hung has returned: %d, %v; want 7", n, err)
		}
		// the context of a read has the time limit, so the read can end by itself
		_, err := read(t.Context(), func(ctx context.Context) (int, error) { <-ctx.Done(); return 0, ctx.Err() })
		if !errors.Is(err, ErrUnknown) && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a read that ends with its context: %v", err)
		}
	})
}

// TestManyReads checks that a caller that starts and cancels many reads leaves at most maxReads
// reads running. After these reads have returned, reads succeed again.
func TestManyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Bounded
		var started atomic.Int32
		answers := make(chan struct{})
		hangs := func(context.Context) (int, error) { started.Add(1); <-answers; return 7, nil }
		leaving, leave := context.WithCancel(t.Context())
		leave()
		for i := range maxReads + 10 {
			_, err := Read(leaving, &b, "test", time.Second, hangs)
			if want := map[bool]error{true: context.Canceled, false: ErrUnknown}[i < maxReads]; !errors.Is(err, want) {
				t.Fatalf("read %d: %v, want %v", i, err, want)
			}
		}
		synctest.Wait()
		if n := started.Load(); n != maxReads {
			t.Errorf("%d reads run, want %d", n, maxReads)
		}
		close(answers)
		synctest.Wait()
		if n, err := Read(t.Context(), &b, "test", time.Second, hangs); n != 7 || err != nil {
			t.Errorf("after the other reads have returned: %d, %v; want 7", n, err)
		}
	})
}
