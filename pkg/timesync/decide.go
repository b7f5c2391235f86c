package timesync

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// StepOver is how far off the clock may be to be slewed; further off it is stepped.
const StepOver = 128 * time.Millisecond

// maxDistance is the root distance over which a server is not believed (RFC 5905: MAXDIST, 1.5 s).
const maxDistance = 1500 * time.Millisecond

// Bounds of what one server can do to the clock. Its answer is not authenticated.
const (
	// FirstWindow is how long after the floor the first synchronisation since boot may set the
	// clock on the word of one server. A quorum may set it up to horizon.
	FirstWindow = 5 * 365 * 24 * time.Hour
	// MaxSlewBy is how far off one server may say a synchronised clock is, to be followed slowly.
	// Further off it is refused (the panic threshold of ntpd, 1000 s).
	MaxSlewBy = 1000 * time.Second
	// slewRate is how fast it is followed: parts per million of the time since the last round.
	slewRate = 500
)

// Sample is one server's answer.
type Sample struct {
	Server   string
	Address  string        // of the machine that answered; Server if it is empty
	Offset   time.Duration // to add to the clock
	Distance time.Duration // the most the server can be wrong by (root distance)
	Stratum  uint8
	Unsynced bool // the leap indicator is 3: the server says that its own clock is not synchronised
}

// Adjustment is what is done with the clock.
type Adjustment int

// The moves. Step sets it, Slew lets it run faster or slower for a while.
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

// View is what is known of a clock before a round.
type View struct {
	Now    time.Time     // what it shows
	Floor  time.Time     // a time that has passed for certain; the clock is never set before it
	Synced bool          // a round has succeeded since boot
	Since  time.Duration // monotonic time since that round
}

// Decision is what a round of answers comes to.
type Decision struct {
	Move Adjustment
	// to add to the clock now; less than Sample.Offset where one server is followed slowly
	Offset time.Duration
	Sample Sample // the answer that was believed
	Quorum bool   // more than half of the answers, of two servers at least, agree with it
}

// Rejected reports whether the clock is moved less than the server asks for.
func (d Decision) Rejected() bool { return d.Offset != d.Sample.Offset }

// Errors of Decide.
var (
	ErrNoAnswer    = errors.New("no time server answered")
	ErrBeforeBuild = errors.New("the time is before the system was built, or before one that this machine has kept; check the time server")
	ErrOneServer   = errors.New("one server cannot set the clock so far; configure two servers or more that agree (Network.spec.ntp.servers)")
	ErrTooLate     = errors.New("the time is decades after the system was built; check the time servers")
)

// Decide says what to do with a clock.
//
// Of three answers or more the one with the median offset is believed: a liar among honest servers
// is never it. Of two or one, the one with the smaller distance. If more than half of the answers,
// of two servers at least, agree with it, it is a quorum, which may set the clock to any time
// between the floor and the horizon.
//
// Without a quorum the first synchronisation since boot may set the clock between Floor and Floor
// + FirstWindow. From then on it cannot step the clock: an offset of up to MaxSlewBy is followed
// by slewRate, and a greater one is refused.
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
	if v.Synced && !d.Quorum {
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

// allows returns why the clock is not moved to where a decision puts it, or nil.
func (v View) allows(d Decision) error {
	to, says := v.Now.Add(d.Offset), v.Now.Add(d.Sample.Offset)
	switch {
	case says.Before(v.Floor) || to.Before(v.Floor):
		return ErrBeforeBuild
	case d.Quorum && to.After(v.Floor.Add(horizon)):
		return ErrTooLate
	case !d.Quorum && !v.Synced && to.After(v.Floor.Add(FirstWindow)):
		return ErrOneServer
	case !d.Quorum && v.Synced && d.Sample.Offset.Abs() > MaxSlewBy:
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
		return fmt.Errorf("is too far from a reference clock to be believed (root distance %v, at most %v)", s.Distance, maxDistance)
	}
	return errUnsynced(s.Stratum, s.Unsynced)
}

// errUnsynced is why a server that answers is of no use. An unsynchronised server says so by a
// stratum of 0 or 16 or by a leap indicator of 3 (RFC 5905 section 7.3); which of them depends on
// the program.
func errUnsynced(stratum uint8, leap bool) error {
	said := fmt.Sprintf("stratum %d", stratum)
	if leap {
		said += ", leap indicator 3"
	}
	return fmt.Errorf("is not synchronised itself (%s); give it a time source of its own, or name another server", said)
}

// quorum reports whether more than half of the answers agree with one of them, and come from two
// servers at least. Two answers agree if both can be right, give or take StepOver. A server that
// is asked by two names is one.
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

// The time between rounds.
const (
	firstPoll = 64 * time.Second
	lastPoll  = 1024 * time.Second
	firstWait = time.Second // after a round that failed
	lastWait  = 64 * time.Second
)

// nextPoll returns the time to the next round: it doubles from 64 s to 1024 s while the clock keeps
// near, and begins again when it was stepped.
func nextPoll(last time.Duration, m Adjustment) time.Duration {
	if m == Step || last < firstPoll {
		return firstPoll
	}
	return min(last*2, lastPoll)
}

// nextWait returns the time to the next round after one that failed: 1 s doubled up to 64 s.
func nextWait(last time.Duration) time.Duration {
	return min(max(last*2, firstWait), lastWait)
}
