package apivip

import (
	"bytes"
	"time"

	"github.com/orlop-os/orlop/orchestrator/neighbor"
)

const (
	// announceInterval is the time between two announcements of the holder. If there was no
	// announcement for the time probeAfter, the other machines probe the link for the holder. If
	// there was none for the time silence, another machine takes the address. The loss of two
	// consecutive announcements has no consequence.
	//
	// The failure of a machine is noticed after 2 seconds or later. If the machine was the leader
	// of etcd, the etcd of the others has noticed the loss, too, by then (orchestrator/etcd: 1 to 2
	// seconds). If the address moved earlier, the write of a client would be forwarded to a lost
	// leader and fail after 7 seconds.
	announceInterval, probeAfter, silence = 400 * time.Millisecond, 1400 * time.Millisecond, 2400 * time.Millisecond
	// stagger is how much longer a machine waits for each ready machine that precedes it in the
	// list, so that a single machine takes the address and the others hear its announcement. If the
	// earlier machines fail to take it for any reason, the later machines do.
	stagger = 500 * time.Millisecond
	// holdTime is how long a machine with an API server that is not ready keeps the address while
	// it knows of no ready API server. The time is limited, because another API server may be ready
	// but not reachable from this machine.
	holdTime = time.Minute
	// Of two holders, the machine with the higher hardware address must yield. yieldDelay is how
	// long that machine first waits for the other holder to yield.
	yieldDelay = time.Second
	// A machine counts as cut off from the others until it has seen a ready majority for cutOff.
	cutOff = 3 * time.Second
)

// State is the state of a machine for a virtual address. The zero State has just begun to listen.
type State struct {
	Active bool
	Since  time.Time    // start of the present value of Active
	Other  neighbor.MAC // last machine that announced the address, or zero
	Heard  time.Time    // time of that announcement
	// since this time, this machine has listened, was able to take the address, and has received no
	// announcement
	quietSince     time.Time
	holder         neighbor.MAC // last known holder of the address, or zero
	announced      time.Time    // last own announcement
	lastEligible   time.Time    // last time that this machine was eligible
	lastMinority   time.Time    // last time without a known ready majority
	contestedSince time.Time    // start of the time in which another machine holds the address, too
	lastStep       time.Time    // time of the last step
}

// Observation is the input of a step.
type Observation struct {
	Now time.Time // of a monotonic clock
	// the API server of this machine is ready, and there is a link to answer on
	Eligible bool
	// there is a link, but no API server is known to be ready, here or elsewhere
	Last   bool
	Most   bool           // more than half of the API servers are known to be ready
	Ahead  int            // ready control-plane machines before this machine in the list
	Own    neighbor.MAC   // of this machine's link
	Claims []neighbor.MAC // machines that announced the address since the last step
}

// Actions are the operations of a step on the link.
type Actions struct {
	Announce bool // announce that this machine holds the address
	Probe    bool // probe the link for the holder of the address
	// the holder has changed, so tracked connections to the address are stale
	Moved bool
}

// Step returns the next state and its actions. It is pure: the clock is in the observation.
//
// The holder keeps the address while it is eligible, even if other machines are eligible, too: a
// move would gain nothing and lose connections. If two machines hold the address, because they
// could not hear each other, the machine that was cut off from the majority yields, because its
// etcd has no leader yet. If neither was cut off, the machine with the lower hardware address keeps
// the address. A machine that was stopped for so long that others may have taken over listens
// first, as after its start.
//
// If no API server is ready, the address stays with its holder for a while. When all servers are
// slow because all machines are busy, a slow answer is better than none. An address without a
// holder would also cost clients the time to resolve it.
func (s State) Step(v Observation) (State, Actions) {
	var todo Actions
	if s.lastStep.IsZero() || v.Now.Sub(s.lastStep) >= silence {
		s.setActive(false, v.Now)
		s.quietSince = v.Now
	}
	s.lastStep = v.Now
	if v.Eligible {
		s.lastEligible = v.Now
	}
	if !v.Most {
		s.lastMinority = v.Now
	}
	for _, other := range v.Claims {
		if s.contestedSince.IsZero() || v.Now.Sub(s.Heard) >= silence {
			s.contestedSince = v.Now
		}
		s.Other, s.Heard = other, v.Now
		// the second condition of apart excludes a machine that has just taken the address
		apart := v.Now.Sub(s.lastMinority) < cutOff && v.Now.Sub(s.Since) >= cutOff
		lower := bytes.Compare(other[:], v.Own[:]) < 0 && v.Now.Sub(s.contestedSince) >= yieldDelay
		switch {
		case !s.Active:
			s.quietSince = v.Now
		case apart || lower || !v.Eligible:
			s.setActive(false, v.Now)
			s.quietSince = v.Now
		default:
			s.announced = time.Time{} // announce to the other holder at once
		}
	}
	if kept := s.Active && v.Last && v.Now.Sub(s.lastEligible) < holdTime; !v.Eligible && !kept {
		s.setActive(false, v.Now)
		s.quietSince = v.Now
	}
	quiet := v.Now.Sub(s.quietSince)
	if !s.Active && quiet >= silence+time.Duration(v.Ahead)*stagger {
		s.setActive(true, v.Now)
		s.announced = time.Time{}
	}
	switch {
	case s.Active && v.Now.Sub(s.announced) >= announceInterval:
		s.announced, todo.Announce = v.Now, true
	case !s.Active && quiet >= probeAfter:
		todo.Probe = true
	}
	holder := s.holder
	if s.Active {
		holder = v.Own
	} else if len(v.Claims) > 0 {
		holder = s.Other
	}
	todo.Moved = holder != s.holder && s.holder != neighbor.MAC{}
	s.holder = holder
	return s, todo
}

func (s *State) setActive(active bool, at time.Time) {
	if s.Active != active || s.Since.IsZero() {
		s.Active, s.Since, s.contestedSince = active, at, time.Time{}
	}
}
