//go:build linux

package timesync

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const day = 24 * time.Hour

// TestFloor checks the floor during a sequence of events: it is never later than the real time.
func TestFloor(t *testing.T) {
	start := time.Now() // has a monotonic reading
	build := start.Add(-100 * day).Round(0)
	p := NewFloor(build, start)
	near := func(what string, at time.Duration, want time.Time) {
		t.Helper()
		if got := p.Now(start.Add(at)); want.Sub(got).Abs() > 10*time.Minute {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	near("at first", 0, build)
	near("after ten days", 10*day, build.Add(10*day-10*day/1000))
	p.Raise(build.Add(-day), start)
	near("after Raise with an earlier time", 0, build)
	for h := range 48 { // A single server is wrong for two days.
		p.Round(false, start.Add(time.Duration(h)*time.Hour))
	}
	near("after two days with a single server", 0, build)
	p.Round(true, start.Add(day))
	near("a quorum, once", day, build.Add(day))
	p.Round(true, start.Add(day+59*time.Minute))
	near("a quorum for less than an hour", day+time.Hour, build.Add(day+time.Hour))
	p.Failed()
	p.Round(true, start.Add(day+61*time.Minute))
	near("a quorum that was interrupted", day+time.Hour, build.Add(day+time.Hour))
	p.Round(true, start.Add(day+122*time.Minute))
	near("a quorum for an hour", day+2*time.Hour, start.Add(2*time.Hour))
	if !p.Now(start.Add(400 * day)).Before(start.Add(400 * day)) {
		t.Error("the floor is later than the clock")
	}
}

// TestFloorIsBounded checks that even a quorum with false times raises the floor by at most
// FirstWindow.
func TestFloorIsBounded(t *testing.T) {
	start := time.Now()
	p := NewFloor(start, start)
	far := func(at time.Duration) time.Time { return start.Add(at) }
	p.Round(true, far(0))
	p.Round(true, far(20*365*day))
	if got := p.Now(far(20 * 365 * day)); got.After(start.Add(20*365*day + FirstWindow)) {
		t.Errorf("the floor is %s", got)
	}
}

// TestMark checks when Run stores the floor in its file, and which files ReadFloor rejects.
func TestMark(t *testing.T) {
	build := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	file := filepath.Join(t.TempDir(), "state", "time")
	if mark, err := ReadFloor(file, build); err != nil || !mark.IsZero() {
		t.Errorf("without a file: %v, %v", mark, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // Run stores the floor once before it checks the context.
	p := NewFloor(build, time.Now())
	p.Run(ctx, file, time.Time{}, func(err error) { t.Error(err) })
	mark, err := ReadFloor(file, build)
	if err != nil || mark.Sub(build).Abs() > time.Minute {
		t.Errorf("Run has stored the floor %v, %v", mark, err)
	}
	now := time.Now()
	if _, due := p.due(mark, now.Add(5*time.Hour)); due {
		t.Error("the file is due again after five hours")
	}
	if _, due := p.due(mark, now.Add(7*time.Hour)); !due {
		t.Error("the file is not due after seven hours")
	}
	for name, c := range map[string]struct{ text, says string }{
		"empty":        {"", "cannot read"},
		"no time":      {"yesterday", "cannot use"},
		"zeros":        {strings.Repeat("\x00", 4096), "cannot use"},
		"long":         {"2026-05-02T00:00:00Z" + strings.Repeat("0", 1<<20), "cannot use"},
		"decades away": {"2096-05-02T00:00:00Z\n", "decades after the build"},
	} {
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if mark, err := ReadFloor(file, build); err == nil || !strings.Contains(err.Error(), c.says) || !mark.IsZero() {
			t.Errorf("%s: %v, %v", name, mark, err)
		}
	}
}
