package l2announcer

import (
	"slices"
	"time"

	"github.com/orlop-os/orlop/orchestrator/neighbor"
)

// peerState records which peers this node hears on the link. The zero value is the state of a node
// that has just begun to listen.
//
// A peer is either heard or silent. Each node with a working announcer announces its own address
// every second. When this node receives such an announcement, the peer becomes heard. The peer
// becomes silent when it has sent no packet for 2 seconds, or no announcement for maxMute.
//
// After 1.2 seconds without a packet, this node solicits the peer. The kernel of the peer answers,
// even while its machine is busy or its announcer restarts, so the peer stays heard. maxMute limits
// the time without an announcement, because a peer without a working announcer answers for no
// address. For example, an announcer that starts during an outage of the API server answers for no
// address until the end of the outage.
//
// Only an announcement makes a silent peer heard again. The kernel of a peer sends other packets
// even if its announcer does not work. There is one exception: when a link comes back, the kernel
// itself announces the address (NETDEV_NOTIFY_PEERS). If the announcer of the peer does not work
// then, the peer is wrongly heard, but not longer than maxMute.
type peerState struct {
	listened    time.Duration   // how long this node has listened
	stepped     time.Time       // time of the last step
	announcedAt time.Time       // time of the last announcement of this node's own address
	heard       map[string]peer // by the name of the Node
}

// peer is the state of a peer that is heard.
type peer struct {
	quiet time.Duration        // time since its last packet
	mute  time.Duration        // time since its last announcement
	last  neighbor.SeenAddress // its last packet
}

// maxMute is how long a peer stays heard without an announcement while its kernel answers. It is
// longer than the start of an announcer takes, so a restart of the announcer moves no address.
const maxMute = 30 * time.Second

// peerActions are the actions that a step of peerState requires.
type peerActions struct {
	announceSelf bool                   // announce the node's own address
	solicit      []neighbor.SeenAddress // solicit the peers that sent these packets
	// announce all addresses of this node again, because other nodes may have answered for them
	reannounce bool
}

// step returns the next state and the actions. Its input is the current time, the other Nodes, and
// the packets that arrived since the last step. It is pure, and jumps of the clock are harmless.
//
// If this node stood still between two steps, it did not listen, so it cannot tell whether its
// peers were silent. step therefore counts at most twice the step interval as time without a
// packet.
//
// Other nodes may have considered this node silent and taken its addresses in two cases: this node
// stood still for at least neighbor.TakeOverAfter, or it hears a peer that was silent. In both
// cases this node announces all its addresses again.
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
	// A peer that is heard again may consider this node silent, so this node announces itself at
	// once.
	if do.announceSelf = len(others) > 0 && (do.reannounce || !now.Before(h.announcedAt.Add(neighbor.AnnounceInterval)) || now.Before(h.announcedAt)); do.announceSelf {
		next.announcedAt = now
	}
	return next, do
}

// silent reports whether the peer with this name is silent. The election then ignores the peer even
// if its Node is ready. A node that has listened for less than neighbor.TakeOverAfter considers no
// peer silent and relies on the API server.
func (h peerState) silent(node string) bool {
	_, heard := h.heard[node]
	return !heard && h.listened >= neighbor.TakeOverAfter
}
