package main

import (
	"math/rand/v2"
	"slices"

	"github.com/orlop-os/orlop/vm/writelog"
)

// classKill is the class of the cuts that end the emulator of a running machine. The cuts of all
// other classes are replayed from the recording.
const classKill = "kill"

// killsInRow is the number of consecutive cuts of class kill. The machine stays on between these
// cuts, which saves a boot.
const killsInRow = 2

// plan returns the classes of the cuts of one round. A round contains each class, so an interrupted
// run has cuts of all classes.
func plan(recorded, wanted []string) (round []string) {
	for _, class := range recorded {
		if len(wanted) == 0 || slices.Contains(wanted, class) {
			round = append(round, class)
		}
	}
	if len(wanted) == 0 || slices.Contains(wanted, classKill) {
		for range killsInRow {
			round = append(round, classKill)
		}
	}
	return round
}

// draws returns the random numbers of a cut. They depend on the seed and the number of the cut, and
// not on earlier cuts.
func draws(seed uint64, number int) *rand.Rand { return rand.New(rand.NewPCG(seed, uint64(number))) }

// instant draws an instant for a power cut in a class. It returns the number of operations of the
// log before the cut.
//
// A stretch is the part of the log between two flushes. All stretches have the same probability,
// whatever their length, because a flush changes which writes can be missing after a cut. Half of
// the cuts are in stretches with a write outside DATA, because such stretches are rare.
func instant(r *recording, l *writelog.Log, class string, luck *rand.Rand) int {
	var spans []span
	for _, s := range r.Spans {
		if s.Class == class {
			spans = append(spans, s)
		}
	}
	s := spans[luck.IntN(len(spans))]
	from, to := l.Before(s.From), l.Before(s.To)
	// The number of operations before a cut in a stretch is at least from+1 and at most to.
	type stretch struct{ from, to int }
	var all, outside []stretch
	for now := (stretch{from, from}); now.to < to; {
		seen := false
		for now.to < to {
			op := l.Ops[now.to]
			now.to++
			if op.Flush {
				break
			}
			seen = seen || op.Sectors > 0 && op.Sector < r.Data.Sector
		}
		all = append(all, now)
		if seen {
			outside = append(outside, now)
		}
		now.from = now.to
	}
	if len(outside) > 0 && luck.IntN(2) == 0 {
		all = outside
	}
	if len(all) == 0 {
		return from // the machine has written nothing in this span
	}
	one := all[luck.IntN(len(all))]
	return one.from + 1 + luck.IntN(one.to-one.from)
}
