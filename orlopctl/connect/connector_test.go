package connect

import (
	"testing"
	"time"
)

// TestLimits checks the time limits for the connection and for the whole command. The limit for the
// connection does not depend on the duration of the operation, so an unreachable machine soon
// causes an error.
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
