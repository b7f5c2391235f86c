package timesync

import (
	"errors"
	"testing"
	"time"
)

func TestDecide(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	build := now.Add(-24 * time.Hour)
	ms := time.Millisecond
	good := func(server string, offset, distance time.Duration) Sample {
		return Sample{Server: server, Offset: offset, Distance: distance, Stratum: 2}
	}
	for _, c := range []struct {
		name    string
		samples []Sample
		move    Move
		server  string
		err     bool
	}{
		{name: "nobody answered", err: true},
		{name: "a little off: slew", samples: []Sample{good("a", 100*ms, ms)}, move: Slew, server: "a"},
		{name: "the edge: slew", samples: []Sample{good("a", -StepOver, ms)}, move: Slew, server: "a"},
		{name: "over the edge: step", samples: []Sample{good("a", StepOver+1, ms)}, move: Step, server: "a"},
		{name: "years ahead: step", samples: []Sample{good("a", 56*365*24*time.Hour, ms)}, move: Step, server: "a"},
		{name: "backwards, not before the build: step", samples: []Sample{good("a", -23*time.Hour, ms)}, move: Step, server: "a"},
		{name: "before the build: refused", samples: []Sample{good("a", -25*time.Hour, ms)}, err: true},
		{name: "two: the nearer one", samples: []Sample{good("far", 0, 90*ms), good("near", ms, 2*ms)}, move: Slew, server: "near"},
		{name: "three: the median, however near the liar is", samples: []Sample{
			good("a", ms, 50*ms), good("liar", time.Hour, ms), good("b", 2*ms, 60*ms)}, move: Slew, server: "b"},
		{name: "four, one a liar: not the liar", samples: []Sample{
			good("liar", -time.Hour, ms), good("a", ms, ms), good("b", 2*ms, ms), good("c", 3*ms, ms)}, move: Slew, server: "a"},
		{name: "too far away to be believed", samples: []Sample{good("a", ms, 2*time.Second)}, err: true},
		{name: "not synchronised itself", samples: []Sample{{Server: "a", Stratum: 16}}, err: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, err := Decide(c.samples, now, build)
			if (err != nil) != c.err {
				t.Fatalf("error %v, want one: %v", err, c.err)
			}
			if d.Move != c.move || d.Sample.Server != c.server {
				t.Errorf("%v by %v of %q, want %v of %q", d.Move, d.Offset, d.Sample.Server, c.move, c.server)
			}
		})
	}
}

func TestPolls(t *testing.T) {
	var p time.Duration
	for _, want := range []time.Duration{64, 128, 256, 512, 1024, 1024} {
		if p = nextPoll(p, Slew); p != want*time.Second {
			t.Fatalf("poll after %v, want %v s", p, int(want))
		}
	}
	if p = nextPoll(p, Step); p != firstPoll {
		t.Errorf("poll after a step: %v", p)
	}
	var w time.Duration
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 64, 64} {
		if w = nextWait(w); w != want*time.Second {
			t.Fatalf("wait of %v, want %v s", w, int(want))
		}
	}
}

func TestPlausible(t *testing.T) {
	build := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	var set time.Time
	record := func(t time.Time) error { set = t; return nil }
	if done, err := plausible(build, time.Unix(0, 0), record); !done || err != nil || !set.Equal(build) {
		t.Errorf("1970: %v, %v, set to %v", done, err, set)
	}
	if done, err := plausible(build, time.Date(2070, 1, 1, 0, 0, 0, 0, time.UTC), record); !done || err != nil || !set.Equal(build) {
		t.Errorf("2070: %v, %v, set to %v", done, err, set)
	}
	set = time.Time{}
	if done, err := plausible(build, build.Add(time.Second), record); done || err != nil || !set.IsZero() {
		t.Errorf("a good clock: %v, %v, set to %v", done, err, set)
	}
	refused := errors.New("no")
	if done, err := plausible(build, time.Unix(0, 0), func(time.Time) error { return refused }); done || !errors.Is(err, refused) {
		t.Errorf("a clock that cannot be set: %v, %v", done, err)
	}
}
