package main

import (
	"fmt"
	"time"

	"github.com/google/uuid"
)

// tableTimeout is the longest time to read the partition table of a disk. A read usually takes
// milliseconds, because a disk has spun up before the kernel shows its partitions.
const tableTimeout = 5 * time.Second

// tables reads partition tables. It gives up on a disk that does not respond, because another disk
// may have the root. It has at most one read of a disk running.
type tables struct {
	read    func(disk string) ([]uuid.UUID, error) // GUIDs in the order of the partition numbers
	timeout time.Duration
	say     func(l level, format string, args ...any)

	pending map[string]<-chan reading // running reads, by the name of the disk
}

// reading is the result of a read of a partition table.
type reading struct {
	guids []uuid.UUID
	err   error
}

// guids returns the unique GUIDs of the partitions on a disk, in the order of the partition
// numbers. If the table cannot be read in time, it returns nil and logs the reason, because the
// disk may be the system disk.
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

// done removes a finished read from pending, logs its error, and returns its GUIDs.
func (t *tables) done(disk string, r reading) []uuid.UUID {
	delete(t.pending, disk)
	if r.err != nil {
		t.say(warning, "%s: cannot read partition table: %v", disk, r.err)
	}
	return r.guids
}

// begin reads a table in a goroutine. A panic of the reader becomes an error of this disk.
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
