package apivip

import (
	"bytes"
	"time"

	"github.com/orlop-os/orlop/orchestrator/neighbor"
)

const (
	// saying is between two announcements of the machine that answers, silence how long nothing has
	// to be heard until another one takes the address, and suspicious how long until the link is
	// asked. Two announcements in a row that are lost move nothing.
	//
	// A machine that dies is missed after 2 seconds or later, when the others' etcd has missed it
	// too, if it was the leader (orchestrator/etcd: 1 to 2 seconds). Who asks at the address sooner
	// than that has his write passed on to a leader that is gone, and hears of it 7 seconds later.
	saying, suspicious, silence = 400 * time.Millisecond, 1400 * time.Millisecond, 2400 * time.Millisecond
	// stagger is how much longer a machine waits for each one that stands before it and is ready,
	// so that one takes the address and the others hear it. Whatever keeps those before it from
	// doing so, it comes to the others.
	stagger = 500 * time.Millisecond
	// keeping is how long a machine whose API server is not ready keeps the address while it knows
	// of nobody who could do better. It ends, because another one that is ready may be so for all
	// but this one.
	keeping = time.Minute
	// insisting is how long the one of two that gives way by its hardware address waits whether the
	// other one does.
	insisting = time.Second
	// cutOff is how long a machine that knew of few others counts as one that was cut off from
	// them.
	cutOff = 3 * time.Second
)

// State is where a machine is with an address. The zero State has just begun to listen.
type State struct {
	Active bool
	Since  time.Time    // it answers, or does not
	Other  neighbor.MAC // who was heard last to speak for the address; zero: nobody was
	Heard  time.Time    // when that was
	// nobody was heard since then, though this machine listened and could have taken the address
	quiet     time.Time
	holder    neighbor.MAC // who was known last to have the address; zero: nobody was
	claimed   time.Time    // when it announced the address last
	able      time.Time    // when it was able to answer last
	few       time.Time    // when it knew last of no majority that is ready
	contested time.Time    // another one answers too since then
	stepped   time.Time    // the last step
}

// Observation is what a step depends on.
type Observation struct {
	Now time.Time // of a clock that does not jump
	// the API server of this machine is ready, and there is a link to answer on
	Eligible bool
	// there is a link, but no API server is known to be ready, here or elsewhere
	Last   bool
	Most   bool           // more than half of the API servers are known to be ready
	Ahead  int            // control-plane machines that stand before this one and are ready
	Own    neighbor.MAC   // of this machine's link
	Claims []neighbor.MAC // who spoke for the address since the last step
}

// Actions is what a step has to do on the link, besides answering or not.
type Actions struct {
	Announce bool // that the address is here
	Probe    bool // who has it
	// another machine than before has it, so what the kernel knows of connections to it is not true
	// any more
	Moved bool
}

// Step follows the view. Pure: the clock is the view's.
//
// The machine that answers keeps the address while it is able to, whoever else is; else nothing
// would be gained, and connections lost. When two answer, because they could not hear each other,
// the one that was cut off from most gives way: its etcd has no leader yet. If neither was, the one
// with the lower hardware address goes on. A machine that was stopped for so long that others have
// taken over listens first, as if it had just been started.
//
// Where no API server is ready the address stays where it is, for a while: when all are slow
// because all machines are busy, a slow answer is better than none, and an address that nobody has
// makes those slower who look for it.
func (s State) Step(v Observation) (State, Actions) {
	var todo Actions
	if s.stepped.IsZero() || v.Now.Sub(s.stepped) >= silence {
		s.answer(false, v.Now)
		s.quiet = v.Now
	}
	s.stepped = v.Now
	if v.Eligible {
		s.able = v.Now
	}
	if !v.Most {
		s.few = v.Now
	}
	for _, other := range v.Claims {
		if s.contested.IsZero() || v.Now.Sub(s.Heard) >= silence {
			s.contested = v.Now
		}
		s.Other, s.Heard = other, v.Now
		// and not that both have just begun
		apart := v.Now.Sub(s.few) < cutOff && v.Now.Sub(s.Since) >= cutOff
		lower := bytes.Compare(other[:], v.Own[:]) < 0 && v.Now.Sub(s.contested) >= insisting
		switch {
		case !s.Active:
			s.quiet = v.Now
		case apart || lower || !v.Eligible:
			s.answer(false, v.Now)
			s.quiet = v.Now
		default:
			s.claimed = time.Time{} // the other one should know at once
		}
	}
	if kept := s.Active && v.Last && v.Now.Sub(s.able) < keeping; !v.Eligible && !kept {
		s.answer(false, v.Now)
		s.quiet = v.Now
	}
	alone := v.Now.Sub(s.quiet)
	if !s.Active && alone >= silence+time.Duration(v.Ahead)*stagger {
		s.answer(true, v.Now)
		s.claimed = time.Time{}
	}
	switch {
	case s.Active && v.Now.Sub(s.claimed) >= saying:
		s.claimed, todo.Announce = v.Now, true
	case !s.Active && alone >= suspicious:
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

func (s *State) answer(now bool, at time.Time) {
	if s.Active != now || s.Since.IsZero() {
		s.Active, s.Since, s.contested = now, at, time.Time{}
	}
}
