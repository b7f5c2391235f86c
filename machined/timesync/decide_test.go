package timesync

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"
)

// TestDecide checks the effect of answers on a clock that was not synchronized since boot.
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
		move    Adjustment
		server  string
		err     bool
	}{
		{name: "no answer: refused", err: true},
		{name: "100 ms off: slew", samples: []Sample{good("a", 100*ms, ms)}, move: Slew, server: "a"},
		{name: "off by StepOver: slew", samples: []Sample{good("a", -StepOver, ms)}, move: Slew, server: "a"},
		{name: "off by more than StepOver: step", samples: []Sample{good("a", StepOver+1, ms)}, move: Step, server: "a"},
		{name: "years ahead: step", samples: []Sample{good("a", 4*365*24*time.Hour, ms)}, move: Step, server: "a"},
		{name: "decades ahead, one server: refused", samples: []Sample{good("a", FirstWindow+time.Hour, ms)}, err: true},
		{name: "decades ahead, two agree: step", samples: []Sample{good("a", 2*FirstWindow, ms), good("b", 2*FirstWindow, 2*ms)}, move: Step, server: "a"},
		{name: "beyond the horizon, all agree: refused", samples: []Sample{
			good("a", horizon, ms), good("b", horizon, ms), good("c", horizon, ms)}, err: true},
		{name: "decades ahead, one authenticated server: refused", samples: []Sample{
			{Server: "a", Offset: FirstWindow + time.Hour, Stratum: 2, Authenticated: true}}, err: true},
		{name: "backwards, not before the build: step", samples: []Sample{good("a", -23*time.Hour, ms)}, move: Step, server: "a"},
		{name: "before the build: refused", samples: []Sample{good("a", -25*time.Hour, ms)}, err: true},
		{name: "two: the smaller distance", samples: []Sample{good("far", 0, 90*ms), good("near", ms, 2*ms)}, move: Slew, server: "near"},
		{name: "three: the median, even if a wrong server has the smallest distance", samples: []Sample{
			good("a", ms, 50*ms), good("liar", time.Hour, ms), good("b", 2*ms, 60*ms)}, move: Slew, server: "b"},
		{name: "four, one is wrong: a correct one", samples: []Sample{
			good("liar", -time.Hour, ms), good("a", ms, ms), good("b", 2*ms, ms), good("c", 3*ms, ms)}, move: Slew, server: "a"},
		{name: "a large distance: refused", samples: []Sample{good("a", ms, 2*time.Second)}, err: true},
		{name: "stratum 16: refused", samples: []Sample{{Server: "a", Stratum: 16}}, err: true},
		{name: "stratum 0: refused", samples: []Sample{{Server: "a"}}, err: true},
		{name: "a leap indicator of 3: refused", samples: []Sample{{Server: "a", Stratum: 2, Unsynced: true}}, err: true},
		{name: "a negative distance: refused", samples: []Sample{good("a", ms, -ms)}, err: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, err := Decide(c.samples, View{Now: now, Floor: build})
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
	if p = nextPoll(p, Step); p != minPoll {
		t.Errorf("poll after a step: %v", p)
	}
	for n, want := range []time.Duration{1, 2, 4, 8, 16, 32, 64, 64} {
		if w := retries.Delay(n + 1); w != want*time.Second {
			t.Fatalf("wait of %v, want %v s", w, int(want))
		}
	}
}

// TestPlausible checks that a clock before the build, or far after it, is set to the time of the
// build.
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

// TestSynchronised checks the effect of answers on a clock that was synchronized since boot.
func TestSynchronised(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	const ms = time.Millisecond
	at := func(server string, offset time.Duration) Sample {
		return Sample{Server: server, Offset: offset, Distance: 10 * ms, Stratum: 2}
	}
	signed := func(server string, offset time.Duration) Sample {
		s := at(server, offset)
		s.Authenticated = true
		return s
	}
	via := func(address string, s Sample) Sample { s.Address = address; return s }
	for _, c := range []struct {
		name    string
		samples []Sample
		since   time.Duration
		move    Adjustment
		by      time.Duration
		err     error
	}{
		{"one, near", []Sample{at("a", 20*ms)}, time.Minute, Slew, 20 * ms, nil},
		{"one, a minute ahead: slowly", []Sample{at("a", time.Minute)}, 64 * time.Second, Slew, 32 * ms, nil},
		{"one, a minute behind: slowly", []Sample{at("a", -time.Minute)}, 64 * time.Second, Slew, -32 * ms, nil},
		{"one, after a day", []Sample{at("a", time.Minute)}, 24 * time.Hour, Slew, maxSlew, nil},
		{"one, immediately after the previous answer", []Sample{at("a", time.Minute)}, 0, Slew, 0, nil},
		{"one, hours ahead", []Sample{at("a", time.Hour)}, time.Hour, 0, 0, ErrOneServer},
		{"one, hours behind", []Sample{at("a", -time.Hour)}, time.Hour, 0, 0, ErrOneServer},
		{"one, authenticated", []Sample{signed("a", time.Hour)}, time.Hour, Step, time.Hour, nil},
		{"one, authenticated, near", []Sample{signed("a", 100*ms)}, time.Second, Slew, 100 * ms, nil},
		{"one, authenticated, behind", []Sample{signed("a", -time.Hour)}, time.Hour, Step, -time.Hour, nil},
		{"one, authenticated, before the floor", []Sample{signed("a", -100*time.Hour)}, time.Hour, 0, 0, ErrBeforeBuild},
		{"one, authenticated, years ahead", []Sample{signed("a", 2*FirstWindow)}, time.Hour, 0, 0, ErrOneServer},
		{"two, authenticated, years ahead", []Sample{signed("a", 2*FirstWindow), signed("b", 2*FirstWindow)}, time.Hour, Step, 2 * FirstWindow, nil},
		{"one of three, authenticated, is wrong", []Sample{signed("a", time.Hour), signed("b", 0), signed("c", 0)}, time.Hour, Slew, 0, nil},
		{"two that disagree", []Sample{at("a", 0), at("b", time.Hour)}, time.Hour, Slew, 0, nil},
		{"two that agree", []Sample{at("a", time.Hour), at("b", time.Hour+ms)}, time.Hour, Step, time.Hour, nil},
		{"two names of one server", []Sample{via("10.0.0.1:123", at("a", time.Hour)), via("10.0.0.1:123", at("b", time.Hour))}, time.Hour, 0, 0, ErrOneServer},
		{"a server twice", []Sample{at("a", time.Hour), at("a", time.Hour)}, time.Hour, 0, 0, ErrOneServer},
		{"two of four agree", []Sample{at("a", 0), at("b", 0), at("c", time.Hour), at("d", time.Hour)}, time.Hour, Slew, 0, nil},
		{"two of three agree", []Sample{at("a", time.Hour), at("b", time.Hour), at("c", 0)}, time.Hour, Step, time.Hour, nil},
		{"two that agree, before the floor", []Sample{at("a", -100*time.Hour), at("b", -100*time.Hour)}, time.Hour, 0, 0, ErrBeforeBuild},
		{"one, before the floor", []Sample{at("a", -100*time.Hour)}, time.Hour, 0, 0, ErrBeforeBuild},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, err := Decide(c.samples, View{Now: now, Floor: now.Add(-48 * time.Hour), Synced: true, Since: c.since})
			if !errors.Is(err, c.err) || d.Move != c.move || d.Offset != c.by {
				t.Errorf("%v by %v, %v; want %v by %v, %v", d.Move, d.Offset, err, c.move, c.by, c.err)
			}
		})
	}
}

// TestOneServerIsSlow checks that a single server moves a synchronized clock by at most slewRate of
// the elapsed time, in any number of rounds.
func TestOneServerIsSlow(t *testing.T) {
	start := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var moved, elapsed time.Duration
		for range 500 {
			since := time.Duration(r.Int64N(int64(2 * maxPoll)))
			elapsed += since
			offset := time.Duration(r.Int64N(int64(3*MaxSlewBy))) - MaxSlewBy/2
			d, err := Decide([]Sample{{Server: "liar", Offset: offset, Stratum: 1}},
				View{Now: start.Add(elapsed + moved), Floor: start.Add(-time.Hour), Synced: true, Since: since})
			if err != nil {
				continue
			}
			if d.Move != Slew {
				t.Fatalf("%v by %v", d.Move, d.Offset)
			}
			moved += d.Offset
		}
		if moved.Abs() > elapsed/1e6*slewRate {
			t.Fatalf("moved by %v in %v", moved, elapsed)
		}
	}
}
