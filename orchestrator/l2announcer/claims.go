package l2announcer

import (
	"net/netip"
	"slices"
	"time"

	"github.com/orlop-os/orlop/orchestrator/neighbor"
)

// The announcements of an address: RFC 4861 (10) permits at most three unsolicited advertisements,
// a second apart, RFC 5227 (1.1) two ARP Announcements, two seconds apart.
const (
	announcements    = 3
	announceInterval = time.Second
	// reannounceInterval is the interval of announcements from then on. The caches of neighbors may
	// be wrong without a sign for this node: an announcement was lost or could not be sent, or
	// another machine made a wrong announcement and is gone. A router may cache that for hours.
	reannounceInterval = 30 * time.Second
)

const (
	// probeInterval is the interval at which a node that is cut off probes whether another node
	// answers for an address.
	probeInterval = 5 * time.Second
	// doubtTime is how long a node that is cut off ignores another node that answers for an
	// address. If the other node only had not heard this node, it has by then and no longer
	// answers.
	doubtTime = neighbor.AnnounceInterval + 500*time.Millisecond
	// yieldTime is how long this node yields to another node after its last claim of an address. It
	// is limited: two nodes may yield to each other, and the other node may have been wrong.
	yieldTime = 4 * probeInterval
	// defendInterval is the shortest time between two announcements of an address in response to
	// claims of other nodes (RFC 5227, 2.4).
	defendInterval = 10 * time.Second
)

// claims are the addresses that the node won, with the state of each. Step computes the next
// claims.
type claims map[netip.Addr]claim

// claim is the state of an address. The zero claim is about to be announced.
type claim struct {
	announced   int       // number of announcements
	announcedAt time.Time // time of the last announcement
	next        time.Time // time of the next announcement or probe
	// time of the last claim of another machine to which this node yields; zero: none
	yielded  time.Time
	doubted  time.Time // time of the first claim of another machine while this node is cut off
	defended time.Time // time of the last defense against another machine's claim
}

// claimInput is the input of a step.
type claimInput struct {
	now     time.Time
	won     []netip.Addr // by election
	cutOff  bool         // from the API server, for so long that others may have taken over
	claimed []netip.Addr // addresses that another machine claimed since the last step
}

// claimActions are the actions of a step, each list in order.
type claimActions struct{ announce, probe []netip.Addr }

// step returns the next claims and the actions. It is pure: it changes no state, and the clock is
// in the input.
//
// A node announces an address when it wins it, or when it answers for it again after it yielded. A
// claim by another machine makes the node yield only while it is cut off. Otherwise both nodes have
// the same information, or will have it in a moment, and the node announces the address once more
// for the neighbors that heard the claim (RFC 5227, 2.4 (b)).
func (c claims) step(v claimInput) (claims, claimActions) {
	next := claims{}
	var do claimActions
	for _, a := range v.won {
		old, known := c[a]
		now := old
		switch claimed := slices.Contains(v.claimed, a); {
		case !v.cutOff && !old.yielded.IsZero(), !known:
			now = claim{}
		case v.cutOff && claimed && now.yielded.IsZero() && v.now.Sub(now.doubted) >= 2*probeInterval:
			now.doubted, now.next = v.now, v.now.Add(doubtTime)
		case v.cutOff && claimed:
			if v.now.Sub(now.doubted) >= doubtTime {
				now.yielded, now.next = v.now, v.now.Add(probeInterval)
			}
		case claimed && v.now.Sub(now.defended) >= defendInterval:
			now = claim{announced: announcements - 1, defended: v.now}
		case !now.yielded.IsZero() && v.now.Sub(now.yielded) >= yieldTime:
			now = claim{}
		}
		if !v.now.Before(now.next) {
			switch {
			case now.yielded.IsZero() && now.announced < announcements:
				now.announced++
				now.announcedAt, now.next = v.now, v.now.Add(announceInterval)
				do.announce = append(do.announce, a)
			case v.cutOff:
				now.next = v.now.Add(probeInterval)
				do.probe = append(do.probe, a)
			case v.now.Sub(now.announcedAt) >= reannounceInterval:
				now.announcedAt = v.now
				do.announce = append(do.announce, a)
			}
		}
		next[a] = now
	}
	return next, do
}

// answered returns the addresses for which the node answers.
func (c claims) answered() []netip.Addr {
	var all []netip.Addr
	for a, now := range c {
		if now.yielded.IsZero() {
			all = append(all, a)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

// reannounce returns claims that announce all addresses again: the links changed, or another node
// may have answered for the addresses.
func (c claims) reannounce() claims {
	next := claims{}
	for a, now := range c {
		next[a] = claim{yielded: now.yielded}
	}
	return next
}

// lease records when the node's Lease was last seen with a new version, as the time of the request.
// The time is from this machine's monotonic clock; the time in the Lease itself does not matter.
type lease struct {
	version string
	seen    time.Time
}

// The kubelet renews the Lease every 10 seconds (a quarter of its duration, 40), and the control
// plane considers the node lost when it has not seen a renewal for 50 seconds
// (node-monitor-grace-period). A renewal is visible here after pollInterval at most. After a
// request that timed out, which takes as long, it is visible after twice this time.
const (
	pollInterval = 5 * time.Second
	leaseExpiry  = 40*time.Second - pollInterval
)

// renewed returns the lease after an answer of the API server.
func (l lease) renewed(version string, now time.Time) lease {
	if version == l.version {
		return l
	}
	return lease{version, now}
}

// cutOff reports whether other nodes may have taken over.
func (l lease) cutOff(now time.Time) bool { return now.Sub(l.seen) > leaseExpiry }
