package supervise

import (
	"fmt"
	"time"

	"github.com/orlop-os/orlop/pkg/backoff"
)

// Phase is the phase of a service, with the names of ServiceStatus.state in the API.
type Phase string

const (
	Waiting    Phase = "waiting"  // waits for its dependencies
	Starting   Phase = "starting" // runs, never ready since its start
	Running    Phase = "running"  // runs and is ready
	Unready    Phase = "unready"  // runs, was ready, is not ready now
	Stopping   Phase = "stopping" // got SIGTERM, still runs
	BackingOff Phase = "backoff"  // has failed; waits before the next start
	Stopped    Phase = "stopped"  // does not run and is not wanted
)

// Alive reports whether there is a process in this phase.
func (p Phase) Alive() bool {
	return p == Starting || p == Running || p == Unready || p == Stopping
}

// Event is an input of the state machine.
type Event string

const (
	Want              Event = "want"         // it shall run
	Unwant            Event = "unwant"       // it shall not run
	Restart           Event = "restart"      // it shall be a new process, at once
	DependenciesReady Event = "needs-ready"  // all its dependencies are ready
	DependenciesLost  Event = "needs-lost"   // a dependency is not ready
	Ready             Event = "ready"        // it is ready
	NotReady          Event = "not-ready"    // it is not ready
	Exited            Event = "exited"       // its process has exited
	StartFailed       Event = "start-failed" // its process could not be started
	Timeout           Event = "timeout"      // the timer of the present phase has expired
)

// State is the whole state of the state machine.
type State struct {
	Phase    Phase
	Wanted   bool // set by Want and Unwant
	Needs    bool // set by DependenciesReady and DependenciesLost
	Failed   bool // stopping because it was not ready in time
	Failures int  // failures since it was last ready for Backoff.Reset
}

// Action is an output of the state machine. Each service has a single timer: SetTimer replaces it,
// and 0 removes it.
type Action struct {
	Kind  ActionKind
	Timer time.Duration // for SetTimer
}

// ActionKind is the kind of an Action.
type ActionKind string

const (
	// start the process; answered by StartFailed, or later Ready or Exited
	Start    ActionKind = "start"
	Term     ActionKind = "terminate" // send SIGTERM to the process; answered by Exited
	Kill     ActionKind = "kill"      // kill the process; answered by Exited
	SetTimer ActionKind = "timer"     // answered by Timeout
)

// String formats the action for test messages.
func (a Action) String() string {
	if a.Kind == SetTimer {
		return fmt.Sprintf("timer %v", a.Timer)
	}
	return string(a.Kind)
}

// Step is the lifecycle of a service as a pure function. It uses only the durations of the service.
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
//	          exited        first failure: starting, or waiting    start, timer: start timeout
//	                        later failures: backoff; failures+1    timer: the back-off
//	          unwant        stopping                               terminate, timer GracePeriod
//	          restart       stopping                               terminate, timer GracePeriod
//	stopping  timeout       stopping                               kill
//	stopping  exited        unwanted: stopped; gave up: backoff;
//	                        otherwise starting, or waiting         as above
//	backoff   timeout       starting, or waiting                   start, timer: start timeout
//	backoff   restart       starting, or waiting                   start, timer: start timeout
//	backoff   unwant        stopped                                no timer
//	stopped   want          starting, or waiting                   start, timer: start timeout
//
// "Starting, or waiting" depends on the readiness of its dependencies. The back-off is
// Backoff.First for the second failure, doubled for each further failure, at most Backoff.Max; a
// first failure without a process counts as the second. The start timeout is StartTimeout, doubled
// for each failure, at most 8 times as long. All other combinations change only Wanted and Needs.
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

// begin starts the process, or waits for the dependencies.
func begin(s State, svc Service) (State, []Action) {
	if !s.Needs {
		s.Phase = Waiting
		return s, []Action{{Kind: SetTimer}}
	}
	s.Phase = Starting
	return s, []Action{{Kind: SetTimer, Timer: startTime(s, svc)}, {Kind: Start}}
}

// startTime returns the timeout of this start. It grows, because a machine may be slower than
// expected: with a constant timeout, a slightly slower service would never become ready, and each
// restart would slow down all other services.
func startTime(s State, svc Service) time.Duration {
	return svc.StartTimeout << min(s.Failures, 3)
}

func stop(s State, svc Service) (State, []Action) {
	s.Phase = Stopping
	return s, []Action{{Kind: SetTimer, Timer: svc.GracePeriod}, {Kind: Term}}
}

func backOff(s State, svc Service) (State, []Action) {
	s.Phase = BackingOff
	// The first failure restarts at once; the delays begin with the second.
	delay := backoff.Backoff{Min: svc.Backoff.First, Max: svc.Backoff.Max}.Delay(s.Failures - 1)
	return s, []Action{{Kind: SetTimer, Timer: delay}}
}
