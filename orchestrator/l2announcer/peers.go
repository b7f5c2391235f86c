package l2announcer

import (
	"slices"
	"time"

	"github.com/orlop-os/orlop/orchestrator/neighbor"
)

// peerState is the state of the peers as this node hears them on the link. The zero peerState has
// just begun to listen.
//
// Each node with a working announcer announces its own address every second. A peer that announced
// itself is heard until it sent no packet for 2 seconds, and from then on it is silent until its
// next announcement. After 1.2 seconds this node solicits the peer, and the peer's kernel answers:
// a machine that is busy, or restarts its announcer, still exists. Without an announcement this
// lasts for maxMute at most: an announcer that starts during an outage of the API server answers
// for no addresses, and its node's addresses would have no owner until the end of the outage. Other
// packets do not make a silent peer heard, because its kernel also sends them without a working
// announcer. The kernel announces the address by itself only when a link comes back
// (NETDEV_NOTIFY_PEERS), and maxMute bounds the effect of that.
type peerState struct {
	listened    time.Duration   // the time since it began to listen
	stepped     time.Time       // the time of the last step
	announcedAt time.Time       // the time of the node's last announcement of itself
	heard       map[string]peer // by the Node's name
}

// peer is a node that is heard.
type peer struct {
	quiet time.Duration        // time without a packet
	mute  time.Duration        // time without an announcement
	last  neighbor.SeenAddress // the last packet
}

// maxMute is how long an existing peer counts as heard without an announcement. The process of an
// announcer starts in less time.
const maxMute = 30 * time.Second

// peerActions are the actions of a step.
type peerActions struct {
	announceSelf bool                   // announce the node's own address
	solicit      []neighbor.SeenAddress // solicit these peers
	// other nodes may have answered for the node's addresses until now
	reannounce bool
}

// step returns the next state, from the packets of the other Nodes since the last step. It is pure:
// the clock is now, and jumps of it are harmless.
//
// Time without a step counts as one step only: a node that stood still did not listen, and its
// peers were not silent. Other nodes may have considered this node silent and taken its addresses
// in two cases: it stood still for as long as makes a node silent, or it hears a peer that was
// silent. Then it has to announce its addresses.
func (h peerState) step(now time.Time, others []Node, claims []neighbor.SeenAddress) (peerState, peerActions) {
	next := peerState{listened: h.listened, stepped: now, announcedAt: h.announcedAt, heard: map[string]peer{}}
	var do peerActions
	var passed time.Duration
	if !h.stepped.IsZero() {
		passed = now.Sub(h.stepped)
		do.reannounce = passed >= neighbor.TakeOverAfter
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
			if c.Announced || heard && p.mute < maxMute {
				do.reannounce = do.reannounce || !heard && h.silent(n.Name)
				p.quiet, p.last, heard = 0, c, true
			}
		}
		if !heard || p.quiet >= neighbor.TakeOverAfter {
			continue
		}
		next.heard[n.Name] = p
		if p.quiet >= neighbor.ProbeAfter {
			do.solicit = append(do.solicit, p.last)
		}
	}
	// A peer that is heard again has to learn at once that this node exists.
	if do.announceSelf = len(others) > 0 && (do.reannounce || !now.Before(h.announcedAt.Add(neighbor.AnnounceInterval)) || now.Before(h.announcedAt)); do.announceSelf {
		next.announcedAt = now
	}
	return next, do
}

// silent reports whether a node is no candidate although the API server reports it as ready. A node
// that has not listened for long enough relies on the API server.
func (h peerState) silent(node string) bool {
	_, heard := h.heard[node]
	return !heard && h.listened >= neighbor.TakeOverAfter
}
