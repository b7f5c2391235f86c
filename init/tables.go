package main

import (
	"fmt"
	"time"

	"github.com/google/uuid"
)

// tableTimeout is how long the partition table of one disk may take to be read. A disk that spins
// up has done so when the kernel shows its partitions, so an answer takes milliseconds.
const tableTimeout = 5 * time.Second

// tables reads partition tables, and gives up on a disk that does not answer: another disk may be
// the one with the root. A disk that is still being read is not read a second time.
type tables struct {
	read    func(disk string) ([]uuid.UUID, error) // in the order of the partitions' numbers
	timeout time.Duration
	say     func(l level, format string, args ...any)

	pending map[string]<-chan reading // by disk, below /dev
}

// reading is what came of one table.
type reading struct {
	guids []uuid.UUID
	err   error
}

// guids returns the unique GUIDs of the partitions on a disk, in the order of their numbers. A disk
// whose table cannot be read, or not in time, has none; the log says why, because it may be the
// system's own.
func (t *tables) guids(disk string) []uuid.UUID {
	if answer, again := t.pending[disk]; again {
		select {
		case r := <-answer:
			return t.done(disk, r)
		default:
			return nil
		}
	}
	answer := t.begin(disk)
	timer := time.NewTimer(t.timeout)
	defer timer.Stop()
	select {
	case r := <-answer:
		return t.done(disk, r)
	case <-timer.C:
		t.pending[disk] = answer
		t.say(warning, "%s: cannot read partition table: no answer within %s; the search goes on without this disk", disk, t.timeout)
		return nil
	}
}

// done notes the end of a reading.
func (t *tables) done(disk string, r reading) []uuid.UUID {
	delete(t.pending, disk)
	if r.err != nil {
		t.say(warning, "%s: cannot read partition table: %v", disk, r.err)
	}
	return r.guids
}

// begin reads a table beside everything else. A panic in the reader is an error of that disk.
func (t *tables) begin(disk string) <-chan reading {
	answer := make(chan reading, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				answer <- reading{err: fmt.Errorf("internal error: %v", r)}
			}
		}()
		guids, err := t.read(disk)
		answer <- reading{guids, err}
	}()
	return answer
}
