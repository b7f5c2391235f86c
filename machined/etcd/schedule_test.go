package etcd

import (
	"testing"
	"time"
)

// TestDue checks when a scheduled snapshot is due, by the time of the last snapshot and the
// interval. The interval 0 means that no snapshots are scheduled. A last snapshot in the future is
// the result of a wrong clock.
func TestDue(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		last  time.Time
		every time.Duration
		want  bool
	}{
		"no snapshot":                   {time.Time{}, time.Hour, true},
		"no snapshot, none scheduled":   {time.Time{}, 0, false},
		"just taken":                    {now, time.Hour, false},
		"a second too early":            {now.Add(-time.Hour + time.Second), time.Hour, false},
		"exactly one interval ago":      {now.Add(-time.Hour), time.Hour, true},
		"long ago":                      {now.Add(-1000 * time.Hour), 168 * time.Hour, true},
		"long ago, none scheduled":      {now.Add(-1000 * time.Hour), 0, false},
		"in the future":                 {now.Add(time.Minute), time.Hour, true},
		"in the future, none scheduled": {now.Add(time.Minute), 0, false},
	} {
		if got := due(c.last, now, c.every); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
