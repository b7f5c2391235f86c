package timesync

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/orlop-os/orlop/pkg/backoff"
)

// StepOver is the largest offset that is slewed. A larger offset is stepped.
const StepOver = 128 * time.Millisecond

// maxDistance is the largest root distance of a usable server (RFC 5905: MAXDIST, 1.5 s).
const maxDistance = 1500 * time.Millisecond

// These limits apply to a single server, because a host on the path can forge its answer. MaxSlewBy
// and slewRate do not apply to an answer that NTS authenticates.
const (
	// FirstWindow is the largest time after the floor (View.Floor) to which a single server may set
	// the clock: in the first synchronization since boot, and in later rounds if NTS authenticates
	// its answer. A quorum may set the clock up to horizon after the floor.
	FirstWindow = 5 * 365 * 24 * time.Hour
	// MaxSlewBy is the largest offset of a single server that a synchronized clock follows. The
	// clock follows at slewRate. A larger offset is rejected. 1000 s is the panic threshold of
	// ntpd.
	MaxSlewBy = 1000 * time.Second
	// slewRate is the rate at which the clock follows a single server, in parts per million of the
	// time since the last round.
	slewRate = 500
)

// Sample is the answer of a server.
type Sample struct {
	Server   string
	Address  string        // address of the machine that answered; if empty, Server identifies it
	Offset   time.Duration // to add to the clock
	Distance time.Duration // the maximum error of the server (root distance)
	Stratum  uint8
	Unsynced bool // the leap indicator is 3: the server's own clock is not synchronized
	Local    bool // true for a PTP clock, which no host in the network can forge
	// Authenticated is true if NTS authenticates the answer. The server itself can still be wrong.
	Authenticated bool
}

// Adjustment is the kind of a clock adjustment.
type Adjustment int

// The adjustments. Step sets the clock at once. Slew makes it run faster or slower for a while.
const (
	Slew Adjustment = iota + 1
	Step
)

func (m Adjustment) String() string {
	if m == Step {
		return "step"
	}
	return "slew"
}

// View is what the machine knows about its clock before a round.
type View struct {
	Now    time.Time     // the time of the clock
	Floor  time.Time     // a time that has certainly passed; the clock is never set before it
	Synced bool          // true if a round has succeeded since boot
	Since  time.Duration // monotonic time since the last successful round
}

// Decision is the result of a round.
type Decision struct {
	Move Adjustment
	// Offset is the time to add to the clock now. It is less than Sample.Offset if the clock
	// follows a single server slowly.
	Offset time.Duration
	Sample Sample // the selected answer
	Quorum bool   // true if a quorum agrees with Sample (function quorum)
}

// confirmed reports whether the decision is based on a quorum or on a PTP clock, not on the answer
// of a single server in the network.
func (d Decision) confirmed() bool { return d.Quorum || d.Sample.Local }

// forgeable reports whether the decision depends on a single answer that a host on the path can
// forge.
func (d Decision) forgeable() bool { return !d.confirmed() && !d.Sample.Authenticated }

// Limited reports whether the clock is moved by less than the offset of the selected answer.
func (d Decision) Limited() bool { return d.Offset != d.Sample.Offset }

// Errors of Decide.
var (
	ErrNoAnswer    = errors.New("no time server answered")
	ErrBeforeBuild = errors.New("the time is before the build of the system, or before the time stored on this machine; check the time server")
	ErrOneServer   = errors.New("a single server cannot set the clock so far; configure two or more servers that agree (Network.spec.ntp.servers)")
	ErrTooLate     = errors.New("the time is decades after the system was built; check the time servers")
)

// Decide selects the adjustment of a clock.
//
// From three or more usable answers it selects the answer with the median offset. A single false
// answer far from the honest answers has the lowest or the highest offset, so it is not selected.
// From one or two answers it selects the answer with the smallest distance. If more than half of
// the answers, from at least two servers, agree with the selected answer, they are a quorum.
//
// The selected answer limits the adjustment:
//   - A quorum may set the clock to any time between Floor and Floor + horizon.
//   - A PTP clock has the same limits, because its hypervisor controls the machine anyway.
//   - A single authenticated server may set it between Floor and Floor + FirstWindow.
//   - A single server without authentication may do the same in the first synchronization since
//     boot. Later, the clock follows an offset of up to MaxSlewBy at slewRate, and a larger offset
//     is rejected.
//
// It returns an error if there is no usable answer, or if the limits reject the selected answer.
func Decide(samples []Sample, v View) (Decision, error) {
	var good []Sample
	for _, s := range samples {
		if usable(s) {
			good = append(good, s)
		}
	}
	if len(good) == 0 {
		if len(samples) > 0 {
			return Decision{}, fmt.Errorf("time server %s: %w", samples[0].Server, unusable(samples[0]))
		}
		return Decision{}, ErrNoAnswer
	}
	best := slices.MinFunc(good, func(a, b Sample) int { return cmp.Compare(a.Distance, b.Distance) })
	if len(good) > 2 {
		slices.SortStableFunc(good, func(a, b Sample) int { return cmp.Compare(a.Offset, b.Offset) })
		best = good[(len(good)-1)/2]
	}
	d := Decision{Move: Slew, Offset: best.Offset, Sample: best, Quorum: quorum(good, best)}
	if best.Offset.Abs() > StepOver {
		d.Move = Step
	}
	if v.Synced && d.forgeable() {
		limit := min(maxSlew, max(0, v.Since)/1e6*slewRate)
		if d.Move == Step || d.Offset.Abs() > limit {
			d.Move, d.Offset = Slew, min(max(d.Offset, -limit), limit)
		}
	}
	if err := v.allows(d); err != nil {
		return Decision{}, fmt.Errorf("time server %s: says %s: %w", best.Server,
			v.Now.Add(best.Offset).UTC().Format(time.RFC3339), err)
	}
	return d, nil
}

// allows returns nil if a decision is within the limits, else the reason why not.
func (v View) allows(d Decision) error {
	to, says := v.Now.Add(d.Offset), v.Now.Add(d.Sample.Offset)
	switch {
	case says.Before(v.Floor) || to.Before(v.Floor):
		return ErrBeforeBuild
	case d.confirmed() && to.After(v.Floor.Add(horizon)):
		return ErrTooLate
	case !d.confirmed() && (!v.Synced || d.Sample.Authenticated) && to.After(v.Floor.Add(FirstWindow)):
		return ErrOneServer
	case d.forgeable() && v.Synced && d.Sample.Offset.Abs() > MaxSlewBy:
		return fmt.Errorf("that is %v off, and %w, or restart the machine if the server is right",
			d.Sample.Offset.Round(time.Second), ErrOneServer)
	}
	return nil
}

func usable(s Sample) bool {
	return !s.Unsynced && s.Distance >= 0 && s.Distance <= maxDistance && s.Stratum > 0 && s.Stratum < 16
}

func unusable(s Sample) error {
	if s.Distance < 0 || s.Distance > maxDistance {
		return fmt.Errorf("is too far from a reference clock (root distance %v, at most %v)", s.Distance, maxDistance)
	}
	return errUnsynced(s.Stratum, s.Unsynced)
}

// errUnsynced returns the error for a server with a clock that is not synchronized. Depending on
// its program, the server answers with stratum 0 or 16, or with a leap indicator of 3 (RFC 5905
// section 7.3).
func errUnsynced(stratum uint8, leap bool) error {
	said := fmt.Sprintf("stratum %d", stratum)
	if leap {
		said += ", leap indicator 3"
	}
	return fmt.Errorf("is not synchronized itself (%s); give it a time source, or configure another server", said)
}

// quorum reports whether more than half of the answers agree with best, and at least two servers
// do. Two answers agree if their offsets differ by at most the sum of their distances and StepOver.
// A server with two names counts as one.
func quorum(good []Sample, best Sample) bool {
	all, agreeing := map[string]bool{}, map[string]bool{}
	for _, s := range good {
		who := cmp.Or(s.Address, s.Server)
		all[who] = true
		if (s.Offset - best.Offset).Abs() <= s.Distance+best.Distance+StepOver {
			agreeing[who] = true
		}
	}
	return len(agreeing) > 1 && len(agreeing)*2 > len(all)
}

// minPoll and maxPoll are the shortest and the longest interval between successful rounds.
const (
	minPoll = 64 * time.Second
	maxPoll = 1024 * time.Second
)

// retries is the delay before the next round after a failed round.
var retries = backoff.Backoff{Min: time.Second, Max: 64 * time.Second}

// nextPoll returns the interval to the next round. last is the previous interval. The interval
// doubles from minPoll to maxPoll while the clock is only slewed, and is minPoll again after a
// step.
func nextPoll(last time.Duration, m Adjustment) time.Duration {
	if m == Step || last < minPoll {
		return minPoll
	}
	return min(last*2, maxPoll)
}
