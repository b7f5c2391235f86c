package neighbor

import "time"

// The times for packages that must detect within 3 seconds that another machine on the link is
// gone.
const (
	// AnnounceInterval is the time between two announcements of the same address by one machine.
	AnnounceInterval = time.Second
	// ProbeAfter is the time without a packet from a machine before the first solicitation of the
	// machine. Every later step repeats the solicitation until a packet arrives.
	ProbeAfter = AnnounceInterval + StepInterval
	// TakeOverAfter is the time without a packet from a machine after which the machine counts as
	// gone. The loss of a single packet does not cause a takeover.
	TakeOverAfter = 2 * time.Second
	// StepInterval is the time between two steps of a user of this package. A step decides what the
	// machine sends.
	StepInterval = 200 * time.Millisecond
)
