package etcd

import (
	"testing"
	"time"
)

func TestDue(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		last  time.Time
		every time.Duration
		want  bool
	}{
		"there is none":              {time.Time{}, time.Hour, true},
		"there is none, nor is to":   {time.Time{}, 0, false},
		"just taken":                 {now, time.Hour, false},
		"a second before its time":   {now.Add(-time.Hour + time.Second), time.Hour, false},
		"just in time":               {now.Add(-time.Hour), time.Hour, true},
		"long ago":                   {now.Add(-1000 * time.Hour), 168 * time.Hour, true},
		"long ago, not wanted":       {now.Add(-1000 * time.Hour), 0, false},
		"of the future":              {now.Add(time.Minute), time.Hour, true},
		"of the future, none wanted": {now.Add(time.Minute), 0, false},
	} {
		if got := due(c.last, now, c.every); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
