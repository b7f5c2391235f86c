package supervise

import (
	"fmt"
	"time"

	"github.com/orlop-os/orlop/pkg/backoff"
)

// Phase is the phase of a service. The values are the values of ServiceStatus.state in the API.
type Phase string

const (
	Waiting    Phase = "waiting"  // waits for its dependencies
	Starting   Phase = "starting" // runs, and has not been ready since its start
	Running    Phase = "running"  // runs and is ready
	Unready    Phase = "unready"  // runs, was ready, and is not ready now
	Stopping   Phase = "stopping" // has got SIGTERM and still runs
	BackingOff Phase = "backoff"  // has failed, and waits for the end of the delay
	Stopped    Phase = "stopped"  // does not run and is not wanted
)

// Alive reports whether a service in this phase has a process.
func (p Phase) Alive() bool {
	return p == Starting || p == Running || p == Unready || p == Stopping
}

// Event is an input of the state machine.
type Event string

const (
	Want              Event = "want"         // the desired state contains the service
	Unwant            Event = "unwant"       // the desired state does not contain the service
	Restart           Event = "restart"      // the service needs a new process at once
	DependenciesReady Event = "needs-ready"  // all dependencies are ready
	DependenciesLost  Event = "needs-lost"   // a dependency is not ready
	Ready             Event = "ready"        // the process is ready
	NotReady          Event = "not-ready"    // the process is not ready
	Exited            Event = "exited"       // the process has exited
	StartFailed       Event = "start-failed" // the process could not be started
	Timeout           Event = "timeout"      // the timer of the present phase has expired
)

// State is the complete state of the state machine.
type State struct {
	Phase    Phase
	Wanted   bool // the desired state contains the service (Want, Unwant)
	Needs    bool // all dependencies are ready (DependenciesReady, DependenciesLost)
	Failed   bool // gave up: the service is stopping because it was not ready in time
	Failures int  // failures since the service was last ready for the whole time Backoff.Reset
}

// Action is an output of the state machine. A service has one timer. SetTimer replaces it, or
// removes it if Timer is 0.
type Action struct {
	Kind  ActionKind
	Timer time.Duration // duration for SetTimer
}

// ActionKind is the kind of an Action.
type ActionKind string

const (
	// start the process; the next event is StartFailed, Ready or Exited
	Start    ActionKind = "start"
	Term     ActionKind = "terminate" // send SIGTERM to the process; Exited follows
	Kill     ActionKind = "kill"      // kill the process; Exited follows
	SetTimer ActionKind = "timer"     // set or remove the timer; Timeout follows
)

// String returns the text of the action in tests.
func (a Action) String() string {
	if a.Kind == SetTimer {
		return fmt.Sprintf("timer %v", a.Timer)
	}
	return string(a.Kind)
}

// Step is the lifecycle of a service as a pure function. It returns the next state after an event,
// and the actions of the transition. Of svc it uses only the durations.
//
//	phase     event         next phase                             actions
//	waiting   needs-ready   starting                               start, timer: start timeout
//	waiting   unwant        stopped
//	starting  ready         running                                timer Backoff.Reset
//	starting  timeout       stopping, gave up, failures+1          terminate, timer GracePeriod
//	starting  start-failed  backoff, failures+1                    timer: the back-off
//	running   not-ready     unready                                no timer
//	running   timeout       running, failures=0
//	unready   ready         running                                timer Backoff.Reset
//	starting, running, unready:
//	          exited        failures+1, and then
//	                        failures=1: starting, or waiting       start, timer: start timeout
//	                        failures>1: backoff                    timer: the back-off
//	          unwant        stopping                               terminate, timer GracePeriod
//	          restart       stopping                               terminate, timer GracePeriod
//	stopping  timeout       stopping                               kill
//	stopping  restart       stopping, no longer gave up
//	stopping  exited        unwanted: stopped                      no timer
//	                        gave up: backoff                       timer: the back-off
//	                        otherwise: starting, or waiting        start, timer: start timeout
//	backoff   timeout       starting, or waiting                   start, timer: start timeout
//	backoff   restart       starting, or waiting                   start, timer: start timeout
//	backoff   unwant        stopped                                no timer
//	stopped   want          starting, or waiting                   start, timer: start timeout
//
// "Starting, or waiting" means starting if all dependencies are ready. Otherwise it means waiting,
// without a process and without a timer. "Gave up" is State.Failed.
//
// The back-off is Backoff.First for the second failure. It doubles with each further failure, up to
// Backoff.Max. If the process could not be started, a first failure counts as the second. The start
// timeout is StartTimeout. It doubles with each failure, up to 8 times StartTimeout.
//
// In every phase, the first four events (want, unwant, needs-ready, needs-lost) also set
// State.Wanted or State.Needs. A combination of phase and event without a row has no other effect.
func Step(s State, e Event, svc Service) (State, []Action) {
	switch e {
	case Want:
		s.Wanted = true
	case Unwant:
		s.Wanted = false
	case DependenciesReady:
		s.Needs = true
	case DependenciesLost:
		s.Needs = false
	}
	switch s.Phase {
	case Waiting, Stopped:
		return stepDown(s, e, svc)
	case Starting, Running, Unready:
		return stepUp(s, e, svc)
	case Stopping:
		return stepStopping(s, e, svc)
	case BackingOff:
		return stepBackoff(s, e, svc)
	}
	return s, nil
}

func stepDown(s State, e Event, svc Service) (State, []Action) {
	switch {
	case s.Phase == Waiting && e == DependenciesReady, s.Phase == Stopped && e == Want:
		return begin(s, svc)
	case s.Phase == Waiting && e == Unwant:
		s.Phase = Stopped
	}
	return s, nil
}

func stepUp(s State, e Event, svc Service) (State, []Action) {
	switch {
	case e == Ready && s.Phase != Running:
		s.Phase = Running
		return s, []Action{{Kind: SetTimer, Timer: svc.Backoff.Reset}}
	case e == NotReady && s.Phase == Running:
		s.Phase = Unready
		return s, []Action{{Kind: SetTimer}}
	case e == Timeout && s.Phase == Running:
		s.Failures = 0
		return s, nil
	case e == Timeout && s.Phase == Starting:
		s.Failed = true
		s.Failures++
		return stop(s, svc)
	case e == StartFailed && s.Phase == Starting:
		s.Failures = max(s.Failures+1, 2)
		return backOff(s, svc)
	case e == Exited:
		s.Failures++
		if s.Failures == 1 {
			return begin(s, svc)
		}
		return backOff(s, svc)
	case e == Unwant, e == Restart:
		return stop(s, svc)
	}
	return s, nil
}

func stepStopping(s State, e Event, svc Service) (State, []Action) {
	switch e {
	case Timeout:
		return s, []Action{{Kind: Kill}}
	case Restart:
		s.Failed = false
	case Exited:
		gaveUp := s.Failed
		s.Failed = false
		switch {
		case !s.Wanted:
			s.Phase = Stopped
			return s, []Action{{Kind: SetTimer}}
		case gaveUp:
			return backOff(s, svc)
		}
		return begin(s, svc)
	}
	return s, nil
}

func stepBackoff(s State, e Event, svc Service) (State, []Action) {
	switch e {
	case Timeout, Restart:
		return begin(s, svc)
	case Unwant:
		s.Phase = Stopped
		return s, []Action{{Kind: SetTimer}}
	}
	return s, nil
}

// begin starts the process if all dependencies are ready. Otherwise the service waits for them.
func begin(s State, svc Service) (State, []Action) {
	if !s.Needs {
		s.Phase = Waiting
		return s, []Action{{Kind: SetTimer}}
	}
	s.Phase = Starting
	return s, []Action{{Kind: SetTimer, Timer: startTime(s, svc)}, {Kind: Start}}
}

// startTime returns the timeout of this start. It grows with each failure, because a machine may be
// slower than expected. With a constant timeout, a service that needs slightly more time would
// never become ready, and its restarts would slow down all other services.
func startTime(s State, svc Service) time.Duration {
	return svc.StartTimeout << min(s.Failures, 3)
}

func stop(s State, svc Service) (State, []Action) {
	s.Phase = Stopping
	return s, []Action{{Kind: SetTimer, Timer: svc.GracePeriod}, {Kind: Term}}
}

func backOff(s State, svc Service) (State, []Action) {
	s.Phase = BackingOff
	// A service starts again at once after its first failure. The delays begin with the second
	// failure.
	delay := backoff.Backoff{Min: svc.Backoff.First, Max: svc.Backoff.Max}.Delay(s.Failures - 1)
	return s, []Action{{Kind: SetTimer, Timer: delay}}
}
