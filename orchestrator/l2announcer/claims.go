package l2announcer

import (
	"net/netip"
	"slices"
	"time"

	"github.com/orlop-os/orlop/orchestrator/neighbor"
)

// What an address is announced with: RFC 4861 (10) has at most three unsolicited advertisements, a
// second apart, RFC 5227 (1.1) two ARP Announcements, two seconds apart.
const (
	announcements = 3
	apart         = time.Second
	// reminding is how often an address is announced from then on. What others keep may be wrong
	// without this node's having a chance to know: an announcement was lost or could not be sent,
	// or somebody was wrong and is gone. A router may keep it for hours.
	reminding = 30 * time.Second
)

const (
	// probing is how often a node that is cut off asks whether another one speaks for an address by
	// now.
	probing = 5 * time.Second
	// doubting is how long a node that is cut off does not believe another one that speaks for an
	// address. If that one only had not heard this node, it has by then, and speaks for it no more.
	doubting = neighbor.AnnounceInterval + 500*time.Millisecond
	// yielding is how long another one speaks for an address after it was heard to do so last. It
	// ends: two nodes may yield to each other, and the other one may have been wrong.
	yielding = 4 * probing
	// defending is between two times that a node announces an address because another one spoke for
	// it (RFC 5227, 2.4).
	defending = 10 * time.Second
)

// claims are the addresses that the node won, and what it does about each. Step makes them from one
// moment to the next.
type claims map[netip.Addr]claim

// claim is one address. The zero claim is about to be announced.
type claim struct {
	announced int       // how many times
	told      time.Time // the last time
	next      time.Time // the next announcement, or the next probe
	// another machine spoke for it last, and the node cannot know better; zero: none does
	yielded  time.Time
	doubted  time.Time // another machine spoke for it first, and the node is cut off
	defended time.Time // another machine spoke for it, and the node knew better
}

// view is what a step depends on.
type view struct {
	now     time.Time
	won     []netip.Addr // by election
	cutOff  bool         // from the API server, for so long that others may have taken over
	claimed []netip.Addr // addresses for which another machine spoke since the last step
}

// doings are what a step has to do, each list in order.
type doings struct{ announce, probe []netip.Addr }

// step follows the view. Pure: it changes nothing, and the clock is the view's.
//
// An address is announced when it is won, or is answered for again. A claim by another machine
// makes the node yield only while it is cut off: else the two have seen the same, or will have in a
// moment, and the node announces the address once more for those who heard the claim (RFC 5227, 2.4
// (b)).
func (c claims) step(v view) (claims, doings) {
	next := claims{}
	var do doings
	for _, a := range v.won {
		old, known := c[a]
		now := old
		switch claimed := slices.Contains(v.claimed, a); {
		case !v.cutOff && !old.yielded.IsZero(), !known:
			now = claim{}
		case v.cutOff && claimed && now.yielded.IsZero() && v.now.Sub(now.doubted) >= 2*probing:
			now.doubted, now.next = v.now, v.now.Add(doubting)
		case v.cutOff && claimed:
			if v.now.Sub(now.doubted) >= doubting {
				now.yielded, now.next = v.now, v.now.Add(probing)
			}
		case claimed && v.now.Sub(now.defended) >= defending:
			now = claim{announced: announcements - 1, defended: v.now}
		case !now.yielded.IsZero() && v.now.Sub(now.yielded) >= yielding:
			now = claim{}
		}
		if !v.now.Before(now.next) {
			switch {
			case now.yielded.IsZero() && now.announced < announcements:
				now.announced++
				now.told, now.next = v.now, v.now.Add(apart)
				do.announce = append(do.announce, a)
			case v.cutOff:
				now.next = v.now.Add(probing)
				do.probe = append(do.probe, a)
			case v.now.Sub(now.told) >= reminding:
				now.told = v.now
				do.announce = append(do.announce, a)
			}
		}
		next[a] = now
	}
	return next, do
}

// answered are the addresses that the node answers for.
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

// again has the addresses announced once more: the links are others, or another node may have
// answered for them.
func (c claims) again() claims {
	next := claims{}
	for a, now := range c {
		next[a] = claim{yielded: now.yielded}
	}
	return next
}

// lease is when the node's Lease was last seen to be another one than before: when it was asked
// for. It is an instant of this machine's clock that does not jump; what time the Lease itself
// names does not matter.
type lease struct {
	version string
	seen    time.Time
}

// The kubelet renews the Lease every 10 seconds (a quarter of its duration, 40), and the control
// plane takes the node for lost when it has not seen a renewal for 50 (node-monitor-grace-period).
// A renewal is seen here at most looking late, and where a question was not answered in time, which
// is as long, as late once more.
const (
	looking = 5 * time.Second
	tooOld  = 40*time.Second - looking
)

// renewed takes in what the API server says of the Lease.
func (l lease) renewed(version string, now time.Time) lease {
	if version == l.version {
		return l
	}
	return lease{version, now}
}

// cutOff says that others may have taken over.
func (l lease) cutOff(now time.Time) bool { return now.Sub(l.seen) > tooOld }
