package rollout

import (
	"fmt"
	"slices"
	"time"
)

// Window is a maintenance window, which repeats every week.
type Window struct {
	// Days are the days on which the window opens; empty means every day.
	Days []time.Weekday
	// Start is the time of day at which the window opens, from 0 to less than 24 h.
	Start time.Duration
	// Length is how long the window is open, more than 0 and at most 24 h.
	Length time.Duration
	// Zone is the time zone of Days and Start; nil means UTC.
	Zone *time.Location
}

// Check returns an error for an invalid window.
func (w Window) Check() error {
	switch {
	case w.Start < 0 || w.Start >= 24*time.Hour:
		return fmt.Errorf("window: start %v is not between 00:00 and 23:59; use a time of day", w.Start)
	case w.Length <= 0 || w.Length > 24*time.Hour:
		return fmt.Errorf("window: length %v is not between 0 and 24h; use several windows for more", w.Length)
	}
	return nil
}

// inWindow reports whether one of the windows is open, and returns the time at which this changes;
// a zero time means never. Without windows, it always returns true.
func inWindow(windows []Window, now time.Time) (open bool, change time.Time) {
	if len(windows) == 0 {
		return true, time.Time{}
	}
	var closes, opens time.Time
	for _, w := range windows {
		for start, end := range w.around(now) {
			switch {
			case start.After(now):
				if opens.IsZero() || start.Before(opens) {
					opens = start
				}
			case now.Before(end) && end.After(closes):
				closes = end
			}
		}
	}
	if closes.IsZero() {
		return false, opens
	}
	return true, closes
}

// around yields the start and end of each opening of the window, from the day before now to a week
// later. Start is a wall-clock time, so the windows open at the same local time in summer and
// winter.
func (w Window) around(now time.Time) func(yield func(start, end time.Time) bool) {
	zone := w.Zone
	if zone == nil {
		zone = time.UTC
	}
	return func(yield func(start, end time.Time) bool) {
		today := now.In(zone)
		for day := -1; day <= 7; day++ {
			at := time.Date(today.Year(), today.Month(), today.Day()+day, 0, int(w.Start/time.Minute), 0, 0, zone)
			if len(w.Days) > 0 && !slices.Contains(w.Days, at.Weekday()) {
				continue
			}
			if !yield(at, at.Add(w.Length)) {
				return
			}
		}
	}
}
