package timesync

import (
	"time"

	"github.com/orlop-os/orlop/pkg/pki"
)

// ClockView returns the machine's knowledge of the time at now, for the verification of
// certificates. The time is unknown until a configured server has synchronized the clock. A machine
// without time servers relies on its hardware clock.
func ClockView(s Status, floor *Floor, now time.Time) pki.ClockView {
	return pki.ClockView{Now: now, Floor: floor.Now(now), Unknown: s.LastSync.IsZero() && len(s.Servers) > 0}
}
