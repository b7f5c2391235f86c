package main

import (
	"math/rand/v2"
	"slices"

	"github.com/orlop-os/orlop/vm/writelog"
)

// classKill is the class whose cuts end the emulator of a running machine. All other cuts are
// replayed.
const classKill = "kill"

// killsInRow are done one after the other, so the machine is not booted for each.
const killsInRow = 2

// plan assigns a class to each cut. Every round contains each class, so an interrupted run has cuts
// of all classes.
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

// draws returns the random source of a cut: the same seed and number draw the same values,
// independent of earlier cuts.
func draws(seed uint64, number int) *rand.Rand { return rand.New(rand.NewPCG(seed, uint64(number))) }

// instant draws the number of operations of the log before the power cut, within a class. Each
// stretch between two flushes has the same chance, independent of its length: flushes change the
// meaning of the disk's content, bytes do not. Half of the cuts are in stretches with a write
// outside DATA, which are rare on a running machine.
func instant(r *recording, l *writelog.Log, class string, luck *rand.Rand) int {
	var spans []span
	for _, s := range r.Spans {
		if s.Class == class {
			spans = append(spans, s)
		}
	}
	s := spans[luck.IntN(len(spans))]
	from, to := l.Before(s.From), l.Before(s.To)
	// the power is cut after more than from and at most to operations
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
		return from // nothing was written
	}
	one := all[luck.IntN(len(all))]
	return one.from + 1 + luck.IntN(one.to-one.from)
}
