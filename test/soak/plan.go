package main

import (
	"math/rand/v2"
	"slices"

	"github.com/orlop-os/orlop/vm/writelog"
)

// classKill is the class whose cuts end the emulator of a living machine. All others are replayed.
const classKill = "kill"

// killsInRow are done one after the other, so that the machine need not be started for each.
const killsInRow = 2

// plan says which cut is of which class. Every round has one of each, so that a run that is broken
// off has seen all of them.
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

// draws is where the cut of a number gets its luck from: the same seed and number draw the same,
// whatever was done before.
func draws(seed uint64, number int) *rand.Rand { return rand.New(rand.NewPCG(seed, uint64(number))) }

// instant draws after how many operations of the log the power goes, within a class. Each stretch
// between two flushes has the same chance, however much is written in it: what is on the disk
// changes its meaning with flushes, not with bytes. Half of the cuts are in stretches in which
// something outside DATA is written, of which a machine that runs has few.
func instant(r *recording, l *writelog.Log, class string, luck *rand.Rand) int {
	var spans []span
	for _, s := range r.Spans {
		if s.Class == class {
			spans = append(spans, s)
		}
	}
	s := spans[luck.IntN(len(spans))]
	from, to := l.Before(s.From), l.Before(s.To)
	// the power goes after more than from and at most to operations
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
