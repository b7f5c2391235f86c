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

// Sample is one server's answer.
type Sample struct {
	Server   string
	Offset   time.Duration // to add to the clock
	Distance time.Duration // the most the server can be wrong by (root distance)
	Stratum  uint8
}

// Move is what is done with the clock.
type Move int

// The moves. Step sets it, Slew lets it run faster or slower for a while.
const (
	Slew Move = iota + 1
	Step
)

func (m Move) String() string {
	if m == Step {
		return "step"
	}
	return "slew"
}

// Decision is what a round of answers comes to.
type Decision struct {
	Move   Move
	Offset time.Duration // to add to the clock
	Sample Sample        // the answer that was believed
}

// Errors of Decide.
var (
	ErrNoAnswer    = errors.New("no time server answered")
	ErrBeforeBuild = errors.New("the time is before the system was built; check the time server")
)

// Decide says what to do with a clock that shows now.
//
// Of three answers or more the one with the median offset is believed: a liar among honest servers is never it. Of two
// or one, the one with the smaller distance. A time before floor (the build of the system) is refused.
func Decide(samples []Sample, now, floor time.Time) (Decision, error) {
	var good []Sample
	for _, s := range samples {
		if s.Distance <= maxDistance && s.Stratum > 0 && s.Stratum < 16 {
			good = append(good, s)
		}
	}
	if len(good) == 0 {
		if len(samples) > 0 {
			return Decision{}, fmt.Errorf("time server %s: is not synchronised itself (stratum %d, distance %v)",
				samples[0].Server, samples[0].Stratum, samples[0].Distance)
		}
		return Decision{}, ErrNoAnswer
	}
	best := slices.MinFunc(good, func(a, b Sample) int { return cmp.Compare(a.Distance, b.Distance) })
	if len(good) > 2 {
		slices.SortStableFunc(good, func(a, b Sample) int { return cmp.Compare(a.Offset, b.Offset) })
		best = good[(len(good)-1)/2]
	}
	if now.Add(best.Offset).Before(floor) {
		return Decision{}, fmt.Errorf("time server %s: says %s: %w", best.Server,
			now.Add(best.Offset).UTC().Format(time.RFC3339), ErrBeforeBuild)
	}
	d := Decision{Move: Slew, Offset: best.Offset, Sample: best}
	if best.Offset.Abs() > StepOver {
		d.Move = Step
	}
	return d, nil
}

// The time between rounds.
const (
	firstPoll = 64 * time.Second
	lastPoll  = 1024 * time.Second
	firstWait = time.Second // after a round that failed
	lastWait  = 64 * time.Second
)

// nextPoll returns the time to the next round: it doubles from 64 s to 1024 s while the clock keeps near, and begins
// again when it was stepped.
func nextPoll(last time.Duration, m Move) time.Duration {
	if m == Step || last < firstPoll {
		return firstPoll
	}
	return min(last*2, lastPoll)
}

// nextWait returns the time to the next round after one that failed: 1 s doubled up to 64 s.
func nextWait(last time.Duration) time.Duration {
	return min(max(last*2, firstWait), lastWait)
}
