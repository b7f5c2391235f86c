package l2announcer

import (
	"slices"
	"time"

	"github.com/orlop-os/orlop/orchestrator/neighbor"
)

// hearing is what a node knows of the others from the link. The zero hearing has just begun to
// listen.
//
// Each node whose announcer works announces its own address every second. A node that announced it
// is heard until there was nothing of it for 2 seconds, and from then on silent until it announces
// it again. After 1.2 seconds it is asked, which its kernel answers: a machine that is busy, or
// whose announcer is being started again, is there; but not for longer than patience without an
// announcement: an announcer that starts while the API server is away has nothing to answer for,
// and its node's addresses would be nobody's until that is back. Other packets of it do not make a
// silent node heard, because its kernel sends them too, also where no announcer works; it announces
// the address by itself only where a link comes back (NETDEV_NOTIFY_PEERS), and then patience
// bounds what is made of it.
type hearing struct {
	listened time.Duration   // since it began to listen
	stepped  time.Time       // the last step
	said     time.Time       // when the node announced itself last
	heard    map[string]peer // by the Node's name
}

// peer is a node that is heard.
type peer struct {
	quiet time.Duration        // there was nothing of it
	mute  time.Duration        // it did not announce itself
	last  neighbor.SeenAddress // by which it was heard
}

// patience is how long a node that is there need not announce itself, to be heard. The process of
// an announcer starts in less.
const patience = 30 * time.Second

// listening is what a step has to do.
type listening struct {
	say  bool                   // that the node is here
	ask  []neighbor.SeenAddress // whether these are still there
	back bool                   // others may have answered for the node's addresses until now
}

// step follows what was heard since the last one of the other Nodes. Pure: the clock is now, and
// jumps do no harm.
//
// Time that passed without a step counts as one step only: a node that stood still did not listen,
// and nobody was silent. When it stood still for as long as makes a node silent, and when a node is
// heard that was silent, the others may have thought the same of this one and taken its addresses,
// so it has to announce them.
func (h hearing) step(now time.Time, others []Node, claims []neighbor.SeenAddress) (hearing, listening) {
	next := hearing{listened: h.listened, stepped: now, said: h.said, heard: map[string]peer{}}
	var do listening
	var passed time.Duration
	if !h.stepped.IsZero() {
		passed = now.Sub(h.stepped)
		do.back = passed >= neighbor.TakeOverAfter
		passed = min(max(passed, 0), 2*neighbor.StepInterval)
	}
	next.listened += passed
	for _, n := range others {
		p, heard := h.heard[n.Name]
		p.quiet += passed
		p.mute += passed
		for _, c := range claims {
			if !slices.Contains(n.Addresses, c.Address) {
				continue
			}
			if c.Announced {
				p.mute = 0
			}
			if c.Announced || heard && p.mute < patience {
				do.back = do.back || !heard && h.silent(n.Name)
				p.quiet, p.last, heard = 0, c, true
			}
		}
		if !heard || p.quiet >= neighbor.TakeOverAfter {
			continue
		}
		next.heard[n.Name] = p
		if p.quiet >= neighbor.ProbeAfter {
			do.ask = append(do.ask, p.last)
		}
	}
	// Whoever is heard again should know at once that this node is here.
	if do.say = len(others) > 0 && (do.back || !now.Before(h.said.Add(neighbor.AnnounceInterval)) || now.Before(h.said)); do.say {
		next.said = now
	}
	return next, do
}

// silent tells whether a node does not count, though the API server says that it is ready. A node
// that has listened for less time than it takes to know believes the API server.
func (h hearing) silent(node string) bool {
	_, heard := h.heard[node]
	return !heard && h.listened >= neighbor.TakeOverAfter
}
