package limits

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// TestRates checks that each key has its own bucket, and that a bucket fills again with time.
func TestRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := Rates{Interval: time.Hour, Burst: 2}
		if r.Exhausted("a") || len(r.buckets) > 0 {
			t.Errorf("an unknown key is exhausted, or has one of %d buckets", len(r.buckets))
		}
		for i, want := range []bool{true, true, false} {
			if exhausted := r.Exhausted("a"); exhausted == want {
				t.Errorf("before operation %d: exhausted %t", i, exhausted)
			}
			if got := r.Allow("a"); got != want {
				t.Errorf("operation %d: %t", i, got)
			}
		}
		if !r.Allow("b") {
			t.Error("the limit of a key applies to another key")
		}
		time.Sleep(time.Hour)
		if r.Exhausted("a") || !r.Allow("a") || r.Allow("a") {
			t.Error("after the interval, a key is not allowed exactly one operation")
		}
	})
}

// TestManyKeys checks that a caller with many keys cannot refill the bucket of a key. The caller
// cannot start more operations than the buckets have tokens. Full buckets make room for new keys.
func TestManyKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := Rates{Interval: time.Hour, Burst: 2}
		r.Allow("a")
		r.Allow("a")
		allowed := 0
		for i := range 10 * MaxKeys {
			if r.Allow(fmt.Sprint(i)) {
				allowed++
			}
			time.Sleep(time.Millisecond)
		}
		if !r.Exhausted("a") || r.Allow("a") {
			t.Error("other keys have refilled a bucket")
		}
		// MaxKeys-1 new keys get a bucket of their own; the other keys share a bucket of Burst
		// tokens
		if want := MaxKeys - 1 + r.Burst; allowed != want || len(r.buckets) != MaxKeys {
			t.Errorf("%d operations of new keys in %d buckets, want %d in %d", allowed, len(r.buckets), want, MaxKeys)
		}
		time.Sleep(time.Hour) // after this hour, each bucket is full, except the bucket of "a"
		for _, key := range []string{"new", "newer"} {
			for i, want := range []bool{true, true, false} {
				if got := r.Allow(key); got != want {
					t.Errorf("operation %d of the key %q: %t", i, key, got)
				}
			}
		}
		if len(r.buckets) != 3 || !r.Allow("a") || r.Allow("a") {
			t.Errorf("%d buckets, want 3; or a new key has replaced the bucket of a, which was not full", len(r.buckets))
		}
	})
}
