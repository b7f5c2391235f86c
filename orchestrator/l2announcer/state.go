package l2announcer

import (
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/orlop-os/orlop/orchestrator/neighbor"
)

// state is what a node has made of what it saw. The zero state has just begun to listen, and
// answers for nothing.
type state struct {
	hearing hearing
	claims  claims
	// the Nodes of the last election, as they were heard then; nil: another one is due
	voters []Node
	won    []netip.Addr // by it
}

// sight is what a step depends on.
type sight struct {
	now      time.Time
	self     string // the node's name
	nodes    []Node
	services []Service              // when they are others, voters is to be nil
	heard    []neighbor.SeenAddress // since the last step
	// it has no link to hear the other nodes on, so that the API server's word counts alone
	deaf   bool
	cutOff bool // from the API server, for so long that others may have taken over
}

// orders are what a step has to do, besides answering.
type orders struct {
	listening
	doings
	silent []string // nodes that do not count for this reason alone
}

// step follows what was seen. Pure.
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
