package l2announcer

import (
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/orlop-os/orlop/orchestrator/neighbor"
)

// state is the state of a node's decisions. The zero state has just begun to listen and answers for
// no address.
type state struct {
	hearing hearing
	claims  claims
	// the Nodes of the last election, with Unheard as of then; nil: another election is due
	voters []Node
	won    []netip.Addr // by this election
}

// observation is the input of a step.
type sight struct {
	now      time.Time
	self     string // the node's name
	nodes    []Node
	services []Service              // set candidates to nil after a change
	heard    []neighbor.SeenAddress // since the last step
	// the node has no link on which it could hear the others, so it relies only on the API server
	deaf   bool
	cutOff bool // from the API server, for so long that others may have taken over
}

// actions are the actions of a step, besides answers.
type orders struct {
	listening
	doings
	silent []string // nodes that are no candidates only because they are silent
}

// step returns the next state and the actions. It is pure.
func (s state) step(v sight) (state, orders) {
	var do orders
	if v.deaf {
		s.hearing = hearing{}
	} else {
		others := slices.DeleteFunc(slices.Clone(v.nodes), func(n Node) bool { return n.Name == v.self })
		s.hearing, do.listening = s.hearing.step(v.now, others, v.heard)
	}
	voters := slices.Clone(v.nodes)
	for i, n := range voters {
		voters[i].Unheard = n.Name != v.self && s.hearing.silent(n.Name)
		if voters[i].Unheard && n.Ready && !n.Excluded {
			do.silent = append(do.silent, n.Name)
		}
	}
	if s.voters == nil || !reflect.DeepEqual(voters, s.voters) {
		s.voters, s.won = voters, Elect(v.self, voters, v.services)
	}
	if do.back {
		s.claims = s.claims.again()
	}
	seen := view{now: v.now, won: s.won, cutOff: v.cutOff}
	for _, c := range v.heard {
		seen.claimed = append(seen.claimed, c.Address)
	}
	s.claims, do.doings = s.claims.step(seen)
	return s, do
}
