package limits

import (
	"fmt"
	"testing"
	"time"
)

// TestRates checks that each key has its own bucket, and that the number of buckets is bounded.
func TestRates(t *testing.T) {
	r := Rates{Interval: time.Hour, Burst: 2}
	for i, want := range []bool{true, true, false} {
		if got := r.Allow("a"); got != want {
			t.Errorf("operation %d: %t", i, got)
		}
	}
	if !r.Allow("b") {
		t.Error("the limit of a key applies to another key")
	}
	for i := range 3 * MaxKeys {
		r.Allow(fmt.Sprint(i))
	}
	if len(r.buckets) > MaxKeys {
		t.Errorf("%d buckets", len(r.buckets))
	}
}
