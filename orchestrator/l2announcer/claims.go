package l2announcer

import (
	"net/netip"
	"slices"
	"time"

	"github.com/orlop-os/orlop/orchestrator/neighbor"
)

// These constants limit the announcements of an address. RFC 4861 (10) permits at most three
// unsolicited advertisements, one second apart. RFC 5227 (1.1) permits two ARP Announcements, two
// seconds apart.
const (
	announcements    = 3
	announceInterval = time.Second
	// reannounceInterval is the interval of all announcements after the first three. They correct
	// the caches of neighbors, which may be wrong although this node sees no claim: an announcement
	// was lost, or another machine made a wrong announcement and disappeared. A router may cache a
	// wrong entry for hours.
	reannounceInterval = 30 * time.Second
)

const (
	// probeInterval is the time between two probes of an address by a node that is cut off from the
	// API server. A probe shows whether another node answers for the address.
	probeInterval = 5 * time.Second
	// doubtTime is how long a node that is cut off ignores the claims of another node for an
	// address. If the other node took the address only because it had not heard this node, it hears
	// this node within that time and stops answering.
	doubtTime = neighbor.AnnounceInterval + 500*time.Millisecond
	// yieldTime is how long this node yields an address after the last claim of another node. The
	// time is limited, because two nodes may yield to each other, and because the claim of the
	// other node may have been wrong.
	yieldTime = 4 * probeInterval
	// defendInterval is the shortest time between two announcements of an address in response to
	// claims of other nodes (RFC 5227, 2.4).
	defendInterval = 10 * time.Second
)

// claims holds the state of each address that the node won in the election.
type claims map[netip.Addr]claim

// claim is the state of an address that the node won. With the zero value, the next step announces
// the address.
type claim struct {
	announced   int       // number of announcements
	announcedAt time.Time // time of the last announcement
	next        time.Time // time of the next announcement or probe
	// yielded is the time of the last claim of another machine to which this node yields. It is
	// zero while this node answers for the address.
	yielded time.Time
	// doubted is the time of a claim of another machine while this node is cut off. If another
	// claim follows after doubtTime, but before twice probeInterval, this node yields.
	doubted  time.Time
	defended time.Time // time of the last announcement against a claim
}

// claimInput is the input of a step of claims.
type claimInput struct {
	now time.Time
	won []netip.Addr // the addresses that the node won in the election
	// cutOff means that the node has not reached the API server for so long that other nodes may
	// have taken its addresses.
	cutOff  bool
	claimed []netip.Addr // addresses that another machine claimed since the last step
}

// claimActions are the actions of a step of claims: the addresses to announce and the addresses to
// probe, in the order of claimInput.won.
type claimActions struct{ announce, probe []netip.Addr }

// step returns the next claims and the actions. It is pure: it does not change c, and the input
// holds the current time.
//
// A node announces an address when it wins the address, and when it answers for the address again
// after it had yielded. A claim by another machine makes the node yield only while the node is cut
// off. A node that is not cut off announces the address once more after such a claim, to correct
// the neighbors that heard the claim (RFC 5227, 2.4 (b)). It does not yield, because both nodes
// have the same data now or in a moment, and so elect the same node.
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

// answered returns the addresses for which the node answers, in ascending order. They are the
// addresses that it has not yielded.
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

// reannounce returns claims that make the next step announce all addresses again that are not
// yielded. The caller uses it after a change of the links, and when another node may have answered
// for the addresses.
func (c claims) reannounce() claims {
	next := claims{}
	for a, now := range c {
		next[a] = claim{yielded: now.yielded}
	}
	return next
}

// lease records the last seen resource version of the node's Lease. seen is the time of the first
// request that returned this version, by the monotonic clock of this machine. The times inside the
// Lease are not used.
type lease struct {
	version string
	seen    time.Time
}

// The kubelet renews the Lease every 10 seconds, which is a quarter of its duration of 40 seconds.
// The control plane considers the node lost when it has seen no renewal for 50 seconds
// (node-monitor-grace-period). This node sees a renewal after pollInterval at most. If a request
// times out, which also takes pollInterval, this node sees the renewal after twice pollInterval. So
// it considers itself cut off at most 45 seconds after the last renewal, before the control plane
// considers it lost.
const (
	pollInterval = 5 * time.Second
	leaseExpiry  = 40*time.Second - pollInterval
)

// renewed returns the next lease after the API server has returned the Lease with this version. The
// parameter now is the time of the request.
func (l lease) renewed(version string, now time.Time) lease {
	if version == l.version {
		return l
	}
	return lease{version, now}
}

// cutOff reports whether this node has seen no renewal for longer than leaseExpiry, so that other
// nodes may have taken its addresses.
func (l lease) cutOff(now time.Time) bool { return now.Sub(l.seen) > leaseExpiry }
