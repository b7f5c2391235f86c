package apivip

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/orchestrator/neighbor"
)

var (
	low, own, high = neighbor.MAC{2, 0, 0, 0, 0, 1}, neighbor.MAC{2, 0, 0, 0, 0, 2}, neighbor.MAC{2, 0, 0, 0, 0, 3}
	claims         = map[byte]neighbor.MAC{'l': low, 'h': high, 'L': low, 'H': high}
)

// TestStep plays the observations of a machine, a letter for each step, 200 ms apart. In see, "."
// is nothing, "l" and "h" are claims of machines with a lower and a higher hardware address, "x"
// means that this machine cannot answer, "o" that no machine can, as far as it knows, "i" that it
// knows of no majority, "L" and "H" are claims meanwhile, and "_" means that it is stopped. In do,
// "." is nothing, "?" probes the link, "A" announces and "a" holds the address without an
// announcement.
func TestStep(t *testing.T) {
	for name, c := range map[string]struct {
		ahead   int
		see, do string
	}{
		"nobody is there":                 {0, ".................", ".......?????AaAaA"},
		"two others are ready":            {2, "...................", ".......??????????Aa"},
		"somebody is heard":               {0, "....l.....l.....h....", "....................."},
		"not for a moment":                {0, "....l..........l.......", "...........????.......?"},
		"he ends":                         {0, "....l..................", "...........?????AaAaAaA"},
		"two, and the other one goes on":  {0, "..............l.l.l.l.......", ".......?????AaAaAaAa.......?"},
		"two, and this one goes on":       {0, "..............h....", ".......?????AaAaAaA"},
		"two, and this one was cut off":   {0, ".......................iiiiH.......", ".......?????AaAaAaAaAaAaAaA.......?"},
		"two that have begun":             {0, "............iiiiHiH", ".......?????AaAaAaA"},
		"cut off a while ago":             {0, "..............i...............h..", ".......?????AaAaAaAaAaAaAaAaAaAaA"},
		"the other one gives way":         {0, "..............l......", ".......?????AaAaAaAaA"},
		"it cannot any more":              {0, "..............x........", ".......?????Aa.......??"},
		"it could not":                    {0, "xxxxxxxxxxxx.............", "..................?????Aa"},
		"it was stopped":                  {0, "..............___________........", ".......?????Aa..................?"},
		"it was stopped for a moment":     {0, "..............__________...", ".......?????Aa..........AaA"},
		"it was stopped, and hears of it": {0, "..............___________h.......", ".......?????Aa..................?"},
		"a claim comes while it cannot":   {0, "xxxlxxx....", "..........."},
		"nobody can":                      {0, "..............ooooooo...", ".......?????AaAaAaAaAaAa"},
		"nobody could":                    {0, "oooooooooooo.............", "..................?????Aa"},
		"nobody can, and then another":    {0, "..............oooooxx.....", ".......?????AaAaAaA......."},
	} {
		t.Run(name, func(t *testing.T) {
			if len(c.see) != len(c.do) {
				t.Fatalf("%d steps are seen, and %d done", len(c.see), len(c.do))
			}
			var s State
			got := ""
			for i, seen := range []byte(c.see) {
				if seen == '_' {
					got += "."
					continue
				}
				v := Observation{Now: begin.Add(time.Duration(i) * neighbor.StepInterval), Eligible: seen != 'x' && seen != 'o', Last: seen == 'o', Most: !strings.ContainsRune("oiLH", rune(seen)), Ahead: c.ahead, Own: own}
				if other, ok := claims[seen]; ok {
					v.Claims = append(v.Claims, other)
				}
				var todo Actions
				s, todo = s.Step(v)
				switch {
				case todo.Announce && s.Active && !todo.Probe:
					got += "A"
				case todo.Announce:
					t.Fatalf("step %d: %+v although it answers: %t", i, todo, s.Active)
				case todo.Probe:
					got += "?"
				case s.Active:
					got += "a"
				default:
					got += "."
				}
			}
			if got != c.do {
				t.Errorf("\nsees %s\ndoes %s\nwant %s", c.see, got, c.do)
			}
		})
	}
}

func TestServer(t *testing.T) {
	var s APIServer
	for i, c := range []struct {
		problem string
		late    bool
		ready   bool
		next    time.Duration
	}{
		{"does not answer", true, false, 0},
		{"", false, true, probeInterval},
		{"does not answer", true, true, 0},
		{"", false, true, probeInterval},
		{"does not answer", true, true, 0},
		{"does not answer", true, false, probeInterval},
		{"does not answer", true, false, probeInterval},
		{"", false, true, probeInterval},
		{"500: shutdown failed", false, false, probeInterval},
	} {
		s = s.Answered(c.problem, c.late)
		if s.Ready != c.ready || s.next(false) != c.next || s.Ready != (s.Problem == "") {
			t.Errorf("answer %d: %+v, asked again after %v; want ready: %t, after %v", i, s, s.next(false), c.ready, c.next)
		}
	}
	if got := s.next(true); got != ownProbeInterval {
		t.Errorf("its own is asked again after %v, want %v", got, ownProbeInterval)
	}
}

func TestAhead(t *testing.T) {
	list := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.3")}
	servers := map[netip.Addr]APIServer{list[0]: {Ready: true}, list[2]: {Ready: true}}
	for i, want := range []int{0, 1, 1} {
		if got := ahead(list, list[i], servers); got != want {
			t.Errorf("before %s: %d are ready, want %d", list[i], got, want)
		}
	}
}
