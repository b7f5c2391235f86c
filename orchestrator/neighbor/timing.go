package neighbor

import "time"

// The pace of packages that have to notice within 3 seconds that a machine of the link is gone.
const (
	// AnnounceInterval is between two announcements of the same by a machine.
	AnnounceInterval = time.Second
	// ProbeAfter is how long nothing has to be heard until the link is asked; it is asked with
	// every step from then on.
	ProbeAfter = AnnounceInterval + StepInterval
	// TakeOverAfter is how long nothing has to be heard until somebody is gone. One lost packet does not
	// make it.
	TakeOverAfter = 2 * time.Second
	// StepInterval is between two steps.
	StepInterval = 200 * time.Millisecond
)
