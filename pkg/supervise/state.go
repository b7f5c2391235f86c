package supervise

import (
	"fmt"
	"time"
)

// Phase is where a service stands. The names are those of ServiceStatus.state in the API.
type Phase string

const (
	Waiting    Phase = "waiting"  // for what it needs
	Starting   Phase = "starting" // runs, was never ready since its start
	Running    Phase = "running"  // runs and is ready
	Unready    Phase = "unready"  // runs, was ready, is not now
	Stopping   Phase = "stopping" // was told to end and has not yet
	BackingOff Phase = "backoff"  // ended by itself; waits before the next try
	Stopped    Phase = "stopped"  // does not run and should not
)

// Alive says whether there is a process in this phase.
func (p Phase) Alive() bool {
	return p == Starting || p == Running || p == Unready || p == Stopping
}

// Event is what can happen to a service.
type Event string

const (
	Want              Event = "want"         // it should run
	Unwant            Event = "unwant"       // it should not run
	Restart           Event = "restart"      // it should be a new process, and at once
	DependenciesReady Event = "needs-ready"  // all that it needs is ready
	DependenciesLost  Event = "needs-lost"   // not all that it needs is ready
	Ready             Event = "ready"        // it says or shows that it can do its work
	NotReady          Event = "not-ready"    // it says or shows that it cannot
	Exited            Event = "exited"       // its process has ended
	StartFailed       Event = "start-failed" // there is no process: it could not be started
	Timeout           Event = "timeout"      // the timer of the present phase has run out
)

// State is the whole memory of the machine.
type State struct {
	Phase    Phase
	Wanted   bool // by Want and Unwant
	Needs    bool // by DependenciesReady and DependenciesLost
	Failed   bool // stopping because it did not get ready in time
	Failures int  // how often it ended by itself since it was last ready for Backoff.Reset
}

// Action is what the machine asks for. Timer is the one timer that a service has: it replaces the
// former one, 0 takes it away.
type Action struct {
	Kind  ActionKind
	Timer time.Duration // for SetTimer
}

// ActionKind is the kind of an Action.
type ActionKind string

const (
	Start    ActionKind = "start"     // the process; answers with StartFailed, or later Ready or Exited
	Term     ActionKind = "terminate" // ask the process to end; answers with Exited
	Kill     ActionKind = "kill"      // end the process; answers with Exited
	SetTimer ActionKind = "timer"     // answers with Timeout
)

// String is for messages of tests.
func (a Action) String() string {
	if a.Kind == SetTimer {
		return fmt.Sprintf("timer %v", a.Timer)
	}
	return string(a.Kind)
}

// Step is the life of a service as a pure function. The service is only read for its durations.
//
//	phase     event          next phase                                              actions
//	waiting   needs-ready    starting                                                start, timer: the start's time
//	waiting   unwant         stopped
//	starting  ready          running                                                 timer Backoff.Reset
//	starting  timeout        stopping, gave up, failures+1                           terminate, timer Grace
//	starting  start-failed   backoff, failures+1                                     timer: the back-off
//	running   not-ready      unready                                                 no timer
//	running   timeout        running, failures=0
//	unready   ready          running                                                 timer Backoff.Reset
//	starting, running, unready:
//	          exited         after the first failure: starting, or waiting           start, timer: the start's time
//	                         after more: backoff; failures+1                         timer: the back-off
//	          unwant         stopping                                                terminate, timer Grace
//	          restart        stopping                                                terminate, timer Grace
//	stopping  timeout        stopping                                                kill
//	stopping  exited         unwanted: stopped; gave up: backoff;
//	                         otherwise starting, or waiting                          as above
//	backoff   timeout        starting, or waiting                                    start, timer: the start's time
//	backoff   restart        starting, or waiting                                    start, timer: the start's time
//	backoff   unwant         stopped                                                 no timer
//	stopped   want           starting, or waiting                                    start, timer: the start's time
//
// "Starting, or waiting" depends on whether what it needs is ready. The back-off is Backoff.First
// for the second failure, doubled for each further one, at most Backoff.Max; the first failure of a
// start that never made a process counts as the second. The time for a start is StartTimeout,
// doubled for each failure, at most 8 times as long. What is not in the table changes nothing but
// Wanted and Needs.
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

// begin starts the process, or waits for what it needs.
func begin(s State, svc Service) (State, []Action) {
	if !s.Needs {
		s.Phase = Waiting
		return s, []Action{{Kind: SetTimer}}
	}
	s.Phase = Starting
	return s, []Action{{Kind: SetTimer, Timer: startTime(s, svc)}, {Kind: Start}}
}

// startTime is how long this start may take. It grows, because a machine may be slower than anybody
// thought of: with the same time again and again, what needs a little more would never get ready,
// and each new start would slow down everything else.
func startTime(s State, svc Service) time.Duration {
	return svc.StartTimeout << min(s.Failures, 3)
}

func stop(s State, svc Service) (State, []Action) {
	s.Phase = Stopping
	return s, []Action{{Kind: SetTimer, Timer: svc.GracePeriod}, {Kind: Term}}
}

func backOff(s State, svc Service) (State, []Action) {
	s.Phase = BackingOff
	delay := svc.Backoff.First
	for range s.Failures - 2 {
		if delay *= 2; delay >= svc.Backoff.Max {
			break
		}
	}
	return s, []Action{{Kind: SetTimer, Timer: min(delay, svc.Backoff.Max)}}
}
