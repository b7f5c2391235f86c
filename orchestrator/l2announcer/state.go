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
	peers  peerState
	claims claims
	// the Nodes of the last election, with Unheard as of then; nil: another election is due
	candidates []Node
	won        []netip.Addr // by this election
}

// observation is the input of a step.
type observation struct {
	now      time.Time
	self     string // the node's name
	nodes    []Node
	services []Service              // set candidates to nil after a change
	heard    []neighbor.SeenAddress // since the last step
	// the node has no link on which it could hear the others, so it relies only on the API server
	noLink bool
	cutOff bool // from the API server, for so long that others may have taken over
}

// actions are the actions of a step, besides answers.
type actions struct {
	peerActions
	claimActions
	silent []string // nodes that are no candidates only because they are silent
}

// step returns the next state and the actions. It is pure.
func (s state) step(v observation) (state, actions) {
	var do actions
	if v.noLink {
		s.peers = peerState{}
	} else {
		others := slices.DeleteFunc(slices.Clone(v.nodes), func(n Node) bool { return n.Name == v.self })
		s.peers, do.peerActions = s.peers.step(v.now, others, v.heard)
	}
	voters := slices.Clone(v.nodes)
	for i, n := range voters {
		voters[i].Unheard = n.Name != v.self && s.peers.silent(n.Name)
		if voters[i].Unheard && n.Ready && !n.Excluded {
			do.silent = append(do.silent, n.Name)
		}
	}
	if s.candidates == nil || !reflect.DeepEqual(voters, s.candidates) {
		s.candidates, s.won = voters, Elect(v.self, voters, v.services)
	}
	if do.reannounce {
		s.claims = s.claims.reannounce()
	}
	seen := claimInput{now: v.now, won: s.won, cutOff: v.cutOff}
	for _, c := range v.heard {
		seen.claimed = append(seen.claimed, c.Address)
	}
	s.claims, do.claimActions = s.claims.step(seen)
	return s, do
}
