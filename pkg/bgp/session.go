package bgp

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// State is the state of a session.
type State uint8

// The states of RFC 4271 section 8.2.2 that a session can have after its TCP connection was
// established.
const (
	OpenSent State = iota + 1
	OpenConfirm
	Established
)

// String names the state as in the RFC.
func (s State) String() string {
	return map[State]string{OpenSent: "OpenSent", OpenConfirm: "OpenConfirm", Established: "Established"}[s]
}

// openTimeout is how long a session waits for the open message of the peer.
const openTimeout = 10 * time.Second

// minHoldTime is the minimum hold time (RFC 4271 section 4.2).
const minHoldTime = 3 * time.Second

// Config configures a session.
type Config struct {
	ASN      uint32
	RouterID netip.Addr // IPv4
	PeerASN  uint32     // 0 means that the peer may have any AS number
	// HoldTime is the maximum time without a message from the other side. After this time, a side
	// ends the session, and the peer then drops the routes of this machine. Both sides use the
	// smaller of their two values. The value is in whole seconds, at least minHoldTime.
	HoldTime time.Duration
	// NextHops are the addresses of this machine, at most one per family. Routes of a family
	// without a next hop are not announced.
	NextHops []netip.Addr
	// Receives means that updates of the peer are decoded and passed to Hooks.Update. If it is
	// false, they are discarded undecoded.
	Receives bool
}

// failure is an error that ends the session with a notification to the peer.
type failure struct {
	send Notification
	err  error
}

func (f *failure) Error() string { return f.err.Error() }

func (f *failure) Unwrap() error { return f.err }

// session is the state of a session. It is immutable: a method that changes the session returns the
// changed copy and the messages to send. The table shows the effect of each message of the peer,
// and of silence: the next state, "end" of the session, or "–" if the state stays:
//
//	state        open         keepalive    update  notification  silence
//	OpenSent     OpenConfirm  end          end     end           end after openTimeout
//	OpenConfirm  end          Established  end     end           end after the hold time
//	Established  end          –            –       end           end after the hold time
//
// The session answers a valid open message with a keepalive. Afterwards, it sends a keepalive each
// time that a third of the hold time has passed. It sends its routes when it becomes established
// and when the wanted routes change.
type session struct {
	Config
	state      State
	peer       Open
	hold       time.Duration  // hold time that both sides use; 0 in OpenSent
	expires    time.Time      // when the session ends unless a message of the peer arrives before
	keepalive  time.Time      // when the next keepalive is due; zero in OpenSent
	advertised []netip.Prefix // nil before the first call of advertise in state Established
}

// begin returns a new session and its first message.
func begin(c Config, now time.Time) (session, []Message) {
	s := session{Config: c, state: OpenSent, expires: now.Add(openTimeout)}
	return s, []Message{{Kind: OpenMessage, Open: Open{
		ASN: c.ASN, HoldTime: c.HoldTime, RouterID: c.RouterID, FourOctets: true, IPv4: true, IPv6: true,
	}}}
}

// internal reports whether the peer is in the same AS.
func (s session) internal() bool { return s.peer.ASN == s.ASN }

// receive handles a message of the peer.
func (s session) receive(now time.Time, m Message) (session, []Message, error) {
	switch {
	case m.Kind == NotificationMessage:
		return s, nil, fmt.Errorf("the peer ended the session: %s", m.Notification)
	case m.Kind == OpenMessage && s.state == OpenSent:
		if err := s.check(m.Open); err != nil {
			return s, nil, err
		}
		s.peer, s.hold, s.state = m.Open, min(m.Open.HoldTime, s.HoldTime), OpenConfirm
		s.expires, s.keepalive = now.Add(s.hold), now.Add(s.hold/3)
		return s, []Message{{Kind: KeepaliveMessage}}, nil
	case m.Kind == OpenMessage, s.state == OpenSent, s.state == OpenConfirm && m.Kind == UpdateMessage:
		return s, nil, &failure{wrongState, fmt.Errorf("the peer sent a message of type %d in state %s", m.Kind, s.state)}
	case s.state == OpenConfirm && m.Kind == KeepaliveMessage:
		s.state = Established
	}
	s.expires = now.Add(s.hold)
	return s, nil, nil
}

// check validates the open message of the peer.
func (s session) check(o Open) error {
	switch {
	case s.PeerASN != 0 && o.ASN != s.PeerASN:
		return &failure{badASN, fmt.Errorf("the peer has the AS number %d, expected %d", o.ASN, s.PeerASN)}
	case !o.RouterID.IsValid() || o.RouterID.IsUnspecified() || o.RouterID == s.RouterID:
		return &failure{badRouterID, fmt.Errorf("the router ID of the peer is %s, expected another than 0.0.0.0 and that of this machine", o.RouterID)}
	case o.HoldTime < minHoldTime:
		// A hold time of 0 disables the timer, so the peer would retain the routes of a machine
		// that has lost its power.
		return &failure{badHoldTime, fmt.Errorf("the hold time of the peer is %s, expected at least %s; set it there", o.HoldTime, minHoldTime)}
	case !o.FourOctets && s.ASN > 0xffff:
		return &failure{badOpen, fmt.Errorf("the peer does not know AS numbers of four octets, such as %d", s.ASN)}
	}
	return nil
}

// tick returns an error if the session has expired, and a keepalive message if one is due.
func (s session) tick(now time.Time) (session, []Message, error) {
	if !now.Before(s.expires) {
		silence := openTimeout
		if s.hold > 0 {
			silence = s.hold
		}
		return s, nil, &failure{holdExpired, fmt.Errorf("the peer sent nothing for %s in state %s", silence, s.state)}
	}
	if !s.keepalive.IsZero() && !now.Before(s.keepalive) {
		s.keepalive = now.Add(s.hold / 3)
		return s, []Message{{Kind: KeepaliveMessage}}, nil
	}
	return s, nil, nil
}

// next returns the time at which the caller must call tick.
func (s session) next() time.Time {
	if s.keepalive.IsZero() || s.expires.Before(s.keepalive) {
		return s.expires
	}
	return s.keepalive
}

// advertise returns the messages that announce new routes of want, and withdraw the advertised
// routes that want does not contain. It returns no messages before the session is established.
func (s session) advertise(want []netip.Prefix) (session, []Message) {
	if s.state != Established {
		return s, nil
	}
	first := s.advertised == nil
	want = slices.DeleteFunc(slices.Clone(want), func(p netip.Prefix) bool { return !s.canAnnounce(p) })
	slices.SortFunc(want, netip.Prefix.Compare)
	want = slices.Compact(want)
	var out []Message
	gone := without(s.advertised, want)
	for _, ipv6 := range []bool{false, true} {
		for part := range slices.Chunk(family(gone, ipv6), routesPerMessage) {
			out = append(out, Message{Kind: UpdateMessage, Update: Update{Withdrawn: part}})
		}
		for part := range slices.Chunk(family(without(want, s.advertised), ipv6), routesPerMessage) {
			u := Update{Announced: part, NextHop: s.hop(part[0])}
			if !s.internal() {
				u.Path = []uint32{s.ASN}
			}
			out = append(out, Message{Kind: UpdateMessage, Update: u})
		}
	}
	if first && s.peer.IPv4 { // End-of-RIB marker
		out = append(out, Message{Kind: UpdateMessage})
	}
	s.advertised = append([]netip.Prefix{}, want...)
	return s, out
}

// canAnnounce reports whether a route can be announced to the peer.
func (s session) canAnnounce(p netip.Prefix) bool {
	known := s.peer.IPv4
	if p.Addr().Is6() {
		known = s.peer.IPv6
	}
	return known && s.hop(p).IsValid()
}

// hop returns the next hop of a route.
func (s session) hop(p netip.Prefix) netip.Addr {
	for _, a := range s.NextHops {
		if a.Is4() == p.Addr().Is4() {
			return a
		}
	}
	return netip.Addr{}
}

// The function without returns the routes of the list all that are not in the list some.
func without(all, some []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool { return slices.Contains(some, p) })
}

// family returns the IPv6 routes of all if ipv6 is true, and otherwise the IPv4 routes.
func family(all []netip.Prefix, ipv6 bool) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool { return p.Addr().Is6() != ipv6 })
}
