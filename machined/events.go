package main

import (
	"context"
	"sync"
	"time"

	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/sanitize"
)

// keptEvents is how many events are kept for those who ask later: about a day of a quiet machine,
// and a boot with all its operations takes about 150.
const keptEvents = 1000

// event is something that happened to the machine: an operation that was done, a change of state, a
// failure.
type event struct {
	cursor  uint64 // 1 for the first event since boot, then growing by one
	time    time.Time
	source  string // "boot", "disk", "network", "service/containerd", …
	kind    string // "stage", "op", "state", "failure", "config", "power"
	message string // one line
}

// eventLog keeps the newest events. Readers follow it by cursor, so that one who is slow misses the
// oldest and holds up nobody.
type eventLog struct {
	mu   sync.Mutex
	kept []event // ascending cursors, at most keptEvents
	last *cell.Cell[uint64]
}

func newEventLog() *eventLog { return &eventLog{last: cell.New(uint64(0))} }

// add appends an event. A message of several lines becomes one.
func (l *eventLog) add(source, kind, message string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last, _ := l.last.Get()
	e := event{cursor: last + 1, time: time.Now(), source: source, kind: kind, message: sanitize.Line(message)}
	if len(l.kept) == keptEvents {
		copy(l.kept, l.kept[1:])
		l.kept = l.kept[:keptEvents-1]
	}
	l.kept = append(l.kept, e)
	l.last.Set(e.cursor)
}

// after returns the kept events with a greater cursor.
func (l *eventLog) after(cursor uint64) []event {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, e := range l.kept {
		if e.cursor > cursor {
			return append([]event(nil), l.kept[i:]...)
		}
	}
	return nil
}

// follow calls each for every event after the cursor; without wait it ends with the newest,
// otherwise with ctx or with the first error of each, which it returns.
func (l *eventLog) follow(ctx context.Context, cursor uint64, wait bool, each func(event) error) error {
	watch := l.last.Watch()
	for {
		_, _, err := watch.Next(ctx)
		if err != nil {
			return err
		}
		for _, e := range l.after(cursor) {
			if err := each(e); err != nil {
				return err
			}
			cursor = e.cursor
		}
		if !wait {
			return nil
		}
	}
}
