package neighbor

import "time"

// The pace of packages that have to notice within 3 seconds that a machine of the link is gone.
const (
	// Saying is between two announcements of the same by a machine.
	Saying = time.Second
	// Suspicious is how long nothing has to be heard until the link is asked; it is asked with
	// every step from then on.
	Suspicious = Saying + Stepping
	// Silence is how long nothing has to be heard until somebody is gone. One lost packet does not
	// make it.
	Silence = 2 * time.Second
	// Stepping is between two steps.
	Stepping = 200 * time.Millisecond
)
