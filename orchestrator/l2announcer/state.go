package l2announcer

import (
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/orlop-os/orlop/orchestrator/neighbor"
)

// state is all that a node remembers between two steps. The zero value is the state of a node that
// has just begun to listen and answers for no address.
type state struct {
	peers  peerState
	claims claims
	// candidates are the Nodes of the last election, with the values of Unheard at that time. If
	// candidates is nil, the next step runs an election.
	candidates []Node
	won        []netip.Addr // the addresses that the node won in the last election
}

// observation is the input of a step of state.
type observation struct {
	now   time.Time
	self  string // the name of this node
	nodes []Node
	// After a change of services, the caller sets state.candidates to nil.
	services []Service
	heard    []neighbor.SeenAddress // packets that arrived since the last step
	// noLink means that the node has no link on which it can hear peers. It then relies on the API
	// server alone.
	noLink bool
	// cutOff means that the node has not reached the API server for so long that other nodes may
	// have taken its addresses.
	cutOff bool
}

// actions are the packets that a step sends, and the nodes for the status text. claims.answered
// returns the addresses for which the node answers.
type actions struct {
	peerActions
	claimActions
	silent []string // ready nodes that are no candidates because they are silent
}

// step returns the next state and the actions. It is pure. It runs an election only if the Nodes,
// their silence or the Services changed.
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
