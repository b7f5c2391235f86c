package supervise

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

var example = Service{StartTimeout: 9 * time.Second, GracePeriod: 5 * time.Second}.withDefaults()

// line returns a state and its actions as text, for example "running wanted needs failures=1:
// start, timer 1s".
func line(s State, actions []Action) string {
	words := []string{string(s.Phase)}
	for _, f := range []struct {
		set  bool
		word string
	}{{s.Wanted, "wanted"}, {s.Needs, "needs"}, {s.Failed, "gave-up"}, {s.Failures > 0, fmt.Sprintf("failures=%d", s.Failures)}} {
		if f.set {
			words = append(words, f.word)
		}
	}
	var asked []string
	for _, a := range actions {
		asked = append(asked, a.String())
	}
	return strings.Join(words, " ") + ": " + strings.Join(asked, ", ")
}

func TestStep(t *testing.T) {
	up := func(p Phase, failures int) State {
		return State{Phase: p, Wanted: true, Needs: true, Failures: failures}
	}
	for _, c := range []struct {
		from  State
		event Event
		want  string
	}{
		{State{Phase: Stopped}, Want, "waiting wanted: timer 0s"},
		{State{Phase: Stopped, Needs: true}, Want, "starting wanted needs: timer 9s, start"},
		{State{Phase: Stopped}, DependenciesReady, "stopped needs: "},
		{State{Phase: Stopped}, Restart, "stopped: "},
		{State{Phase: Waiting, Wanted: true}, DependenciesReady, "starting wanted needs: timer 9s, start"},
		{State{Phase: Waiting, Wanted: true}, Unwant, "stopped: "},
		{State{Phase: Waiting, Wanted: true}, Restart, "waiting wanted: "},

		{up(Starting, 0), Ready, "running wanted needs: timer 1m0s"},
		{up(Starting, 0), NotReady, "starting wanted needs: "},
		{up(Starting, 0), DependenciesLost, "starting wanted: "},
		{up(Starting, 0), Timeout, "stopping wanted needs gave-up failures=1: timer 5s, terminate"},
		{up(Starting, 0), StartFailed, "backoff wanted needs failures=2: timer 1s"},
		{up(Starting, 4), StartFailed, "backoff wanted needs failures=5: timer 8s"},
		{up(Starting, 0), Exited, "starting wanted needs failures=1: timer 18s, start"},
		{up(Starting, 1), Exited, "backoff wanted needs failures=2: timer 1s"},

		{up(Running, 0), Ready, "running wanted needs: "},
		{up(Running, 3), Timeout, "running wanted needs: "},
		{up(Running, 0), NotReady, "unready wanted needs: timer 0s"},
		{up(Running, 0), DependenciesLost, "running wanted: "},
		{up(Running, 0), Exited, "starting wanted needs failures=1: timer 18s, start"},
		{State{Phase: Running, Wanted: true}, Exited, "waiting wanted failures=1: timer 0s"},
		{up(Running, 1), Exited, "backoff wanted needs failures=2: timer 1s"},
		{up(Running, 2), Exited, "backoff wanted needs failures=3: timer 2s"},
		{up(Running, 5), Exited, "backoff wanted needs failures=6: timer 16s"},
		{up(Running, 6), Exited, "backoff wanted needs failures=7: timer 30s"},
		{up(Running, 900), Exited, "backoff wanted needs failures=901: timer 30s"},
		{up(Running, 0), Unwant, "stopping needs: timer 5s, terminate"},
		{up(Running, 0), Restart, "stopping wanted needs: timer 5s, terminate"},
		{up(Unready, 0), Ready, "running wanted needs: timer 1m0s"},
		{up(Unready, 0), Exited, "starting wanted needs failures=1: timer 18s, start"},
		{up(Unready, 0), Unwant, "stopping needs: timer 5s, terminate"},

		{State{Phase: Stopping, Needs: true}, Timeout, "stopping needs: kill"},
		{State{Phase: Stopping, Needs: true}, Exited, "stopped needs: timer 0s"},
		{State{Phase: Stopping, Needs: true}, Want, "stopping wanted needs: "},
		{up(Stopping, 1), Exited, "starting wanted needs failures=1: timer 18s, start"},
		{up(Stopping, 1), Unwant, "stopping needs failures=1: "},
		{State{Phase: Stopping, Wanted: true, Needs: true, Failed: true, Failures: 3}, Exited, "backoff wanted needs failures=3: timer 2s"},
		{State{Phase: Stopping, Wanted: true, Needs: true, Failed: true, Failures: 3}, Restart, "stopping wanted needs failures=3: "},

		{up(BackingOff, 2), Timeout, "starting wanted needs failures=2: timer 36s, start"},
		{State{Phase: BackingOff, Wanted: true, Failures: 2}, Timeout, "waiting wanted failures=2: timer 0s"},
		{up(BackingOff, 900), Timeout, "starting wanted needs failures=900: timer 1m12s, start"},
		{up(BackingOff, 2), Restart, "starting wanted needs failures=2: timer 36s, start"},
		{up(BackingOff, 2), Unwant, "stopped needs failures=2: timer 0s"},
		{up(BackingOff, 2), DependenciesLost, "backoff wanted failures=2: "},
	} {
		if got := line(Step(c.from, c.event, example)); got != c.want {
			t.Errorf("%s + %s\n got  %s\n want %s", line(c.from, nil), c.event, got, c.want)
		}
	}
}

// TestStepNeverStartsTwice performs random events in a simulated environment. It checks that there
// is never a second process, that only an existing process is stopped, and that a wanted service
// with ready dependencies always has a timer or a process.
func TestStepNeverStartsTwice(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	s, process, timer := State{Phase: Stopped}, false, false
	for i := range 200_000 {
		possible := []Event{Want, Unwant, Restart, DependenciesReady, DependenciesLost}
		if process {
			possible = append(possible, Ready, NotReady, Exited)
		}
		if timer {
			possible = append(possible, Timeout, Timeout)
		}
		e := possible[random.IntN(len(possible))]
		switch e {
		case Exited:
			process = false
		case Timeout:
			timer = false
		}
		before := s
		var actions []Action
		s, actions = Step(s, e, example)
		if slices.ContainsFunc(actions, func(a Action) bool { return a.Kind == Start }) {
			if process {
				t.Fatalf("step %d: %s + %s starts a second process", i, line(before, nil), e)
			}
			if process = random.IntN(10) > 0; !process {
				actions = nil
				s, actions = Step(s, StartFailed, example)
			}
		}
		for _, a := range actions {
			if (a.Kind == Term || a.Kind == Kill) && !process {
				t.Fatalf("step %d: %s + %s ends a process that does not exist", i, line(before, nil), e)
			}
			if a.Kind == SetTimer {
				timer = a.Timer > 0
			}
		}
		if s.Phase.Alive() != process {
			t.Fatalf("step %d: %s + %s gives %s, with a process: %v", i, line(before, nil), e, s.Phase, process)
		}
		if s.Wanted && s.Needs && !process && !timer {
			t.Fatalf("step %d: %s + %s gives %s: no event will start the service", i, line(before, nil), e, line(s, actions))
		}
	}
}
