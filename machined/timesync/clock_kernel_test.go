//go:build linux

package timesync

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSystemClockKernel steps and slews the machine's clock, forwards and backwards.
func TestSystemClockKernel(t *testing.T) {
	if os.Getenv("ORLOP_KERNEL_TEST") != "1" {
		t.Skip("moves the clock: needs a machine of its own under the product kernel (ORLOP_KERNEL_TEST=1)")
	}
	start := time.Now()
	// ahead returns by how much the wall clock has moved since start compared with the monotonic
	// clock.
	ahead := func() time.Duration {
		now := time.Now()
		return now.Round(0).Sub(start.Round(0)) - now.Sub(start)
	}
	near := func(what string, want time.Duration) {
		t.Helper()
		if got := ahead(); (got - want).Abs() > time.Second {
			t.Errorf("%s: the clock is ahead by %v, want %v", what, got, want)
		}
	}
	clock := SystemClock()
	if err := clock.Step(time.Hour + 500*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	near("stepped forwards", time.Hour)
	if err := clock.Step(-2*time.Hour - 500*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	near("stepped backwards", -time.Hour)
	if err := clock.Slew(100 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	near("slewed", -time.Hour)
	var tx unix.Timex
	if state, err := unix.Adjtimex(&tx); err != nil || state == unix.TIME_ERROR || tx.Status&unix.STA_UNSYNC != 0 {
		t.Errorf("the kernel does not regard the clock as synchronised: state %d, status %#x, %v", state, tx.Status, err)
	}
	if tx.Offset == 0 {
		t.Errorf("the kernel has no offset that it slews")
	}
	if done, err := Plausible(start.Add(time.Hour)); !done || err != nil {
		t.Errorf("Plausible with a later time: %v, %v", done, err)
	}
	near("set by Plausible", time.Hour)
	if done, err := Plausible(start); done || err != nil {
		t.Errorf("Plausible with an earlier time: %v, %v", done, err)
	}
}
