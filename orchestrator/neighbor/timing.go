package neighbor

import "time"

// The times of packages that have to detect within 3 seconds that a machine of the link is gone.
const (
	// AnnounceInterval is the time between two announcements of the same address by a machine.
	AnnounceInterval = time.Second
	// ProbeAfter is the time without a packet of a machine after which it is solicited, with every
	// step from then on.
	ProbeAfter = AnnounceInterval + StepInterval
	// TakeOverAfter is the time without a packet after which a machine is considered gone. One lost
	// packet does not suffice.
	TakeOverAfter = 2 * time.Second
	// StepInterval is the time between two steps.
	StepInterval = 200 * time.Millisecond
)
