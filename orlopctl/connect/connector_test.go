package connect

import (
	"testing"
	"time"
)

// TestLimits checks that the time limit for the connection does not grow with the operation,
// because an unreachable machine must be an error soon.
func TestLimits(t *testing.T) {
	for _, c := range []struct {
		flag, work, dial, total time.Duration
	}{
		{0, 0, DefaultTimeout, DefaultTimeout},
		{0, time.Hour, DefaultTimeout, time.Hour + DefaultTimeout},
		{time.Minute, time.Hour, time.Minute, time.Minute},
		{time.Second, 0, time.Second, time.Second},
	} {
		conn := &Connector{Flags: Flags{Timeout: c.flag}}
		if dial, total := conn.limits(c.work); dial != c.dial || total != c.total {
			t.Errorf("--timeout %v, work %v: %v and %v, want %v and %v", c.flag, c.work, dial, total, c.dial, c.total)
		}
	}
}
