package main

import (
	"fmt"
	"time"

	"github.com/google/uuid"
)

// tableTimeout is the time limit for reading the partition table of a disk. A disk has spun up
// before the kernel shows its partitions, so an answer takes milliseconds.
const tableTimeout = 5 * time.Second

// tables reads partition tables, and gives up on a disk that does not answer: another disk may have
// the root. It does not start a second read of a disk while the first is running.
type tables struct {
	read    func(disk string) ([]uuid.UUID, error) // in the order of the partitions' numbers
	timeout time.Duration
	say     func(l level, format string, args ...any)

	pending map[string]<-chan reading // by disk, below /dev
}

// reading is the result of reading a table.
type reading struct {
	guids []uuid.UUID
	err   error
}

// guids returns the unique GUIDs of the partitions on a disk, in the order of their numbers. The
// result is empty if the table cannot be read in time; the log says why, because it may be the
// system disk.
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
		t.say(warning, "%s: cannot read partition table: no answer within %s; the search continues without this disk", disk, t.timeout)
		return nil
	}
}

// done handles the end of a read.
func (t *tables) done(disk string, r reading) []uuid.UUID {
	delete(t.pending, disk)
	if r.err != nil {
		t.say(warning, "%s: cannot read partition table: %v", disk, r.err)
	}
	return r.guids
}

// begin reads a table in the background. A panic in the reader is an error of that disk.
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
