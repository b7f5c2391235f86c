package bootenv

import (
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestStart checks that Start converts the start of init to the time of day. For a missing or
// invalid value, it returns the present time.
func TestStart(t *testing.T) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		t.Fatal(err)
	}
	ago := strconv.FormatInt(now.Nano()-time.Hour.Nanoseconds(), 10)
	for value, want := range map[string]time.Duration{ago: time.Hour, "": 0, "none": 0} {
		if got := time.Since(Start(value)); got < want-time.Second || got > want+time.Minute {
			t.Errorf("%q: %v ago, want %v", value, got, want)
		}
	}
}
