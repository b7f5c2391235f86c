package bgp

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// State is the state of a session.
type State uint8

// The states, as in RFC 4271 section 8.2.2, of a session whose connection exists.
const (
	OpenSent State = iota + 1
	OpenConfirm
	Established
)

// String names the state as in the RFC.
func (s State) String() string {
	return map[State]string{OpenSent: "OpenSent", OpenConfirm: "OpenConfirm", Established: "Established"}[s]
}

// openTimeout is how long the exchange of the first messages may take.
const openTimeout = 10 * time.Second

// minHoldTime is the least hold time (RFC 4271 section 4.2).
const minHoldTime = 3 * time.Second

// Config configures a session.
type Config struct {
	ASN      uint32
	RouterID netip.Addr // IPv4
	PeerASN  uint32     // 0: any
	// HoldTime is how long the peer may be silent; the peer drops our routes after it. The smaller
	// of both sides counts. Whole seconds, at least minHoldTime.
	HoldTime time.Duration
	// NextHops are the addresses of this machine, at most one per family; routes of another family
	// are not announced.
	NextHops []netip.Addr
	// Receives selects the updates of the peer; otherwise they are discarded undecoded.
	Receives bool
}

// failure is an error that ends the session with a notification to the peer.
type failure struct {
	send Notification
	err  error
}

func (f *failure) Error() string { return f.err.Error() }

func (f *failure) Unwrap() error { return f.err }

// session is the state of a session. It is a value: each method returns the next state and the
// messages to send.
//
//	state        open         keepalive    update  notification  silence
//	OpenSent     OpenConfirm  end          end     end           end after openTimeout
//	OpenConfirm  end          Established  end     end           end after the hold time
//	Established  end          –            –       end           end after the hold time
//
// The answer to a valid open is a keepalive. A session sends a keepalive after a third of the hold
// time, and its routes when it is established and when the wanted routes change.
type session struct {
	Config
	state      State
	peer       Open
	hold       time.Duration // negotiated; 0 in OpenSent
	expires    time.Time     // without a message of the peer
	keepalive  time.Time     // the next; zero in OpenSent
	advertised []netip.Prefix
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

// check validates the first message of the peer.
func (s session) check(o Open) error {
	switch {
	case s.PeerASN != 0 && o.ASN != s.PeerASN:
		return &failure{badASN, fmt.Errorf("the peer has the AS number %d, expected %d", o.ASN, s.PeerASN)}
	case !o.RouterID.IsValid() || o.RouterID.IsUnspecified() || o.RouterID == s.RouterID:
		return &failure{badRouterID, fmt.Errorf("the router ID of the peer is %s, expected another than 0.0.0.0 and that of this machine", o.RouterID)}
	case o.HoldTime < minHoldTime:
		// With 0 the peer would keep the routes of a machine that lost its power.
		return &failure{badHoldTime, fmt.Errorf("the hold time of the peer is %s, expected at least %s; set it there", o.HoldTime, minHoldTime)}
	case !o.FourOctets && s.ASN > 0xffff:
		return &failure{badOpen, fmt.Errorf("the peer does not know AS numbers of four octets, such as %d", s.ASN)}
	}
	return nil
}

// tick handles the time.
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

// next returns the time of the next tick.
func (s session) next() time.Time {
	if s.keepalive.IsZero() || s.expires.Before(s.keepalive) {
		return s.expires
	}
	return s.keepalive
}

// advertise returns the messages that lead the peer from the advertised routes to the wanted
// routes. It returns none before the session is established.
func (s session) advertise(want []netip.Prefix) (session, []Message) {
	if s.state != Established {
		return s, nil
	}
	first := s.advertised == nil
	want = slices.DeleteFunc(slices.Clone(want), func(p netip.Prefix) bool { return !s.carries(p) })
	slices.SortFunc(want, netip.Prefix.Compare)
	want = slices.Compact(want)
	var out []Message
	gone := without(s.advertised, want)
	for _, six := range []bool{false, true} {
		for part := range slices.Chunk(family(gone, six), chunk) {
			out = append(out, Message{Kind: UpdateMessage, Update: Update{Withdrawn: part}})
		}
		for part := range slices.Chunk(family(without(want, s.advertised), six), chunk) {
			u := Update{Announced: part, NextHop: s.hop(part[0])}
			if !s.internal() {
				u.Path = []uint32{s.ASN}
			}
			out = append(out, Message{Kind: UpdateMessage, Update: u})
		}
	}
	if first && s.peer.IPv4 { // the end of the first routes
		out = append(out, Message{Kind: UpdateMessage})
	}
	s.advertised = append([]netip.Prefix{}, want...)
	return s, out
}

// carries reports whether a route can be announced to the peer.
func (s session) carries(p netip.Prefix) bool {
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

func without(all, some []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool { return slices.Contains(some, p) })
}

func family(all []netip.Prefix, six bool) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool { return p.Addr().Is6() != six })
}
