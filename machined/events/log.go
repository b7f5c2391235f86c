package events

import (
	"context"
	"sync"
	"time"

	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/sanitize"
)

// maxEvents is the number of retained events: about a day of a quiet machine. A boot with all its
// operations adds about 150.
const maxEvents = 1000

// Event is a change of the machine: an operation, a change of state, a failure.
type Event struct {
	Cursor  uint64 // 1 for the first event since boot, then increasing by one
	Time    time.Time
	Source  string // "boot", "disk", "network", "service/containerd", …
	Kind    string // "stage", "operation", "state", "failure", "config", "power"
	Message string // one line
}

// Console shows lines to a person at the machine.
type Console interface{ Line(text string) }

// Log retains the newest events. Readers read by cursor, so a slow reader misses the oldest
// events and delays no other reader.
type Log struct {
	mu      sync.Mutex
	newest  []Event // ascending cursors, at most maxEvents
	last    *cell.Cell[uint64]
	console Console // nil before ShowOn, and without a console
}

// NewLog returns an empty log without a console.
func NewLog() *Log { return &Log{last: cell.New(uint64(0))} }

// Add appends an event. A message of several lines is joined to one line.
func (l *Log) Add(source, kind, message string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last, _ := l.last.Get()
	e := Event{Cursor: last + 1, Time: time.Now(), Source: source, Kind: kind, Message: sanitize.Line(message)}
	if len(l.newest) == maxEvents {
		copy(l.newest, l.newest[1:])
		l.newest = l.newest[:maxEvents-1]
	}
	l.newest = append(l.newest, e)
	l.last.Set(e.Cursor)
}

// From returns a function that adds events of a source.
func (l *Log) From(source string) func(kind, message string) {
	return func(kind, message string) { l.Add(source, kind, message) }
}

// ShowOn sets the console for LogConsole.
func (l *Log) ShowOn(c Console) { l.console = c }

// LogConsole writes a line to the console and adds it as an event.
func (l *Log) LogConsole(line string) {
	l.Add("boot", "console", line)
	if l.console != nil {
		l.console.Line(line)
	}
}

// Last holds the cursor of the newest event; 0 without events.
func (l *Log) Last() *cell.Cell[uint64] { return l.last }

// After returns the retained events with a greater cursor.
func (l *Log) After(cursor uint64) []Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, e := range l.newest {
		if e.Cursor > cursor {
			return append([]Event(nil), l.newest[i:]...)
		}
	}
	return nil
}

// Tail calls `each` for every event after the cursor. If wait is false, it ends after the newest
// event; otherwise it waits for further events until ctx ends. If `each` returns an error, Tail
// returns this error at once.
func (l *Log) Tail(ctx context.Context, cursor uint64, wait bool, each func(Event) error) error {
	watch := l.last.Watch()
	for {
		_, _, err := watch.Next(ctx)
		if err != nil {
			return err
		}
		for _, e := range l.After(cursor) {
			if err := each(e); err != nil {
				return err
			}
			cursor = e.Cursor
		}
		if !wait {
			return nil
		}
	}
}
