package main

import (
	"context"
	"sync"
	"time"

	"github.com/orlop-os/orlop/machined/console"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/sanitize"
)

// maxEvents is the number of retained events: about a day of a quiet machine; a boot with all its
// operations has about 150.
const maxEvents = 1000

// event is a change of the machine: an operation, a change of state, a failure.
type event struct {
	cursor  uint64 // 1 for the first event since boot, then increasing by one
	time    time.Time
	source  string // "boot", "disk", "network", "service/containerd", …
	kind    string // "stage", "operation", "state", "failure", "config", "power"
	message string // one line
}

// eventLog retains the newest events. Readers read by cursor, so a slow reader misses the oldest
// events and delays no other reader.
type eventLog struct {
	mu     sync.Mutex
	newest []event // ascending cursors, at most maxEvents
	last   *cell.Cell[uint64]
	// console also shows some events; nil before showConsole, and without a console
	console *console.Console
}

func newEventLog() *eventLog { return &eventLog{last: cell.New(uint64(0))} }

// add appends an event. A message of several lines is joined to one line.
func (l *eventLog) add(source, kind, message string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last, _ := l.last.Get()
	e := event{cursor: last + 1, time: time.Now(), source: source, kind: kind, message: sanitize.Line(message)}
	if len(l.newest) == maxEvents {
		copy(l.newest, l.newest[1:])
		l.newest = l.newest[:maxEvents-1]
	}
	l.newest = append(l.newest, e)
	l.last.Set(e.cursor)
}

// logConsole writes a line to the console and adds it as an event.
func (l *eventLog) logConsole(line string) {
	l.add("boot", "console", line)
	if l.console != nil {
		l.console.Line(line)
	}
}

// after returns the retained events with a greater cursor.
func (l *eventLog) after(cursor uint64) []event {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, e := range l.newest {
		if e.cursor > cursor {
			return append([]event(nil), l.newest[i:]...)
		}
	}
	return nil
}

// tail calls each for every event after the cursor; without wait it ends with the newest event,
// otherwise with ctx or with the first error of each, which it returns.
func (l *eventLog) tail(ctx context.Context, cursor uint64, wait bool, each func(event) error) error {
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
