package timesync

import (
	"testing"
	"time"
)

// TestClockView checks that the time is unknown while servers are configured, but none has
// synchronized the clock.
func TestClockView(t *testing.T) {
	now := time.Now()
	floor := NewFloor(now.Add(-time.Hour), now)
	for _, c := range []struct {
		status  Status
		unknown bool
	}{
		{Status{}, false},
		{Status{Servers: []string{"10.0.0.1"}}, true},
		{Status{Servers: []string{"10.0.0.1"}, LastSync: now}, false},
	} {
		v := ClockView(c.status, floor, now)
		if v.Unknown != c.unknown || !v.Now.Equal(now) || !v.Floor.Equal(floor.Now(now)) {
			t.Errorf("with the status %+v, the ClockView is %+v", c.status, v)
		}
	}
}
