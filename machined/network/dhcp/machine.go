package dhcp

import (
	"net/netip"
	"time"

	"github.com/orlop-os/orlop/pkg/backoff"
)

// Phase is a state of RFC 2131 figure 5.
type Phase int

// The phases. The phase is Init before the first message, during the back-off after several Naks,
// and while the link has no carrier. In Init, a lease stays in use until it ends.
const (
	Init Phase = iota
	Selecting
	Requesting
	Rebooting
	Bound
	Renewing
	Rebinding
)

func (p Phase) String() string {
	return [...]string{"init", "selecting", "requesting", "rebooting", "bound", "renewing", "rebinding"}[p]
}

// State is the state of the state machine. The zero State is the state of a new client. To request
// the address of a stored lease first, set Lease and leave InUse false.
type State struct {
	Phase   Phase
	Carrier bool   // the link has a carrier
	XID     uint32 // transaction ID of the current exchange
	// time at which the last request was sent; the lease of its Ack starts at this time
	Sent    time.Time
	Since   time.Time // start of the search for a lease; the field secs counts from it
	Attempt int       // messages sent in this phase
	Naks    int       // number of Naks since the last Ack
	Offer   Lease     // the offered lease that the client requests (Requesting only)
	Lease   *Lease    // the lease in use, or the stored lease
	InUse   bool      // Lease is in use
}

// EventKind is the type of an event.
type EventKind int

// Events of a client.
const (
	LinkUp   EventKind = iota + 1 // the link has a carrier
	LinkDown                      // the carrier is lost
	Tick                          // the timer of the last action Wake has expired
	Received                      // a server's message was received
)

// Event is an input of the state machine. At is the present time, with a monotonic reading (as from
// time.Now), so a step of the wall clock does not affect leases. Rand is a new random number for
// the transaction ID and the jitter.
type Event struct {
	Kind  EventKind
	At    time.Time
	Rand  uint32
	Reply *Reply // Received only
}

// ActionKind is the type of an action.
type ActionKind int

// Actions that Client performs for the state machine.
const (
	Send ActionKind = iota + 1 // send Message
	// set the timer: Tick occurs at At; the zero time stops the timer
	Wake
	Apply // Lease is in use now: the network controller configures and stores it
	Drop  // no lease is in use now: the controller removes the address and the stored lease
)

// Action is an output of the state machine.
type Action struct {
	Kind    ActionKind
	Message Message
	At      time.Time
	Lease   *Lease
}

// Message is a message to send. It has only the fields in which the messages of the phases differ
// (RFC 2131 table 5).
type Message struct {
	Discover  bool       // true: DHCPDISCOVER, false: DHCPREQUEST
	XID       uint32     // transaction ID
	Secs      uint16     // seconds since the search began
	Client    netip.Addr // ciaddr: the client's own address, Renewing and Rebinding only
	Requested netip.Addr // option 50
	Server    netip.Addr // option 54, Requesting only
	To        netip.Addr // unicast to this server (Renewing); invalid for a broadcast
}

// Intervals and numbers of attempts. The package comment has the reason for the first interval.
const (
	minBackoff = 250 * time.Millisecond
	maxBackoff = 64 * time.Second
	// shortest interval in Renewing and Rebinding (RFC 2131 section 4.4.5)
	minRenewInterval = 60 * time.Second
	requestAttempts  = 5 // 8 s in total
	rebootAttempts   = 3 // 2 s in total
)

// Step is the client's state machine.
//
//	phase       event                     next        actions
//	Init        LinkUp, no lease          Selecting   send DISCOVER
//	Init        LinkUp, lease known       Rebooting   send REQUEST for it
//	Init        Tick, carrier             Selecting   send DISCOVER (end of the wait after a NAK)
//	Init        Tick, lease ended         Init        drop
//	Selecting   OFFER                     Requesting  send REQUEST
//	Selecting   ACK with rapid commit     Bound       apply
//	Selecting   Tick                      Selecting   send DISCOVER, double the interval
//	Requesting  ACK                       Bound       apply
//	Requesting  first NAK since an ACK    Selecting   send DISCOVER
//	Requesting  later NAK                 Init        wait (back-off)
//	Requesting  Tick                      Requesting  send REQUEST; after 5 attempts: Selecting
//	Rebooting   ACK                       Bound       apply
//	Rebooting   NAK                       Selecting   drop, send DISCOVER
//	Rebooting   Tick                      Rebooting   send REQUEST; after 3 attempts:
//	                                                  a lease in use stays (Bound, Renewing or
//	                                                  Rebinding by its age); drop a stored lease
//	Bound       Tick at T1                Renewing    send REQUEST to the server
//	Renewing    ACK                       Bound       apply
//	Renewing    NAK                       Selecting   drop, send DISCOVER
//	Renewing    Tick                      Renewing    send REQUEST to the server; at T2: Rebinding
//	Rebinding   ACK                       Bound       apply
//	Rebinding   NAK                       Selecting   drop, send DISCOVER
//	Rebinding   Tick                      Rebinding   broadcast REQUEST; at end: drop, Selecting
//	any         LinkDown                  Init        the lease stays in use until it ends
//
// The actions apply and drop are the ActionKinds Apply and Drop. Other events change no state.
// Messages with another transaction ID are ignored.
func Step(s State, ev Event) (State, []Action) {
	switch ev.Kind {
	case LinkUp:
		return linkUp(s, ev)
	case LinkDown:
		s.Carrier, s.Phase, s.Attempt = false, Init, 0
		if s.InUse {
			return s, []Action{{Kind: Wake, At: s.Lease.Expires()}}
		}
		return s, []Action{{Kind: Wake}}
	case Tick:
		return tick(s, ev)
	case Received:
		if ev.Reply != nil && ev.Reply.XID == s.XID {
			return received(s, ev)
		}
	}
	return s, nil
}

func linkUp(s State, ev Event) (State, []Action) {
	if s.Carrier {
		return s, nil
	}
	s.Carrier, s.Since = true, ev.At
	if s.Lease == nil || s.Lease.expired(ev.At) {
		return drop(s, ev)
	}
	s.Phase, s.Attempt, s.XID, s.Sent = Rebooting, 0, ev.Rand, ev.At
	return sendReboot(s, ev)
}

func tick(s State, ev Event) (State, []Action) {
	switch s.Phase {
	case Init:
		if s.InUse && s.Lease.expired(ev.At) || !s.InUse && s.Carrier {
			return drop(s, ev)
		}
	case Selecting:
		return sendDiscover(s, ev)
	case Requesting:
		if s.Attempt < requestAttempts {
			return sendRequest(s, ev)
		}
		return discover(s, ev)
	case Rebooting:
		switch {
		case s.Attempt < rebootAttempts:
			return sendReboot(s, ev)
		case s.InUse && !s.Lease.expired(ev.At):
			return maintain(s, ev)
		}
		return drop(s, ev)
	case Bound, Renewing, Rebinding:
		return maintain(s, ev)
	}
	return s, nil
}

func received(s State, ev Event) (State, []Action) {
	r := ev.Reply
	switch {
	case s.Phase == Selecting && r.Kind == Offer:
		s.Phase, s.Attempt, s.Offer, s.Sent = Requesting, 0, r.Lease, ev.At
		return sendRequest(s, ev)
	case s.Phase == Selecting && r.Kind == Ack && r.Rapid:
		return bind(s, ev)
	case s.Phase == Requesting && r.Lease.Server.IsValid() && r.Lease.Server != s.Offer.Server:
		return s, nil // another server than the server of the offer
	case s.Phase == Requesting || s.Phase == Rebooting || s.Phase == Renewing || s.Phase == Rebinding:
		switch r.Kind {
		case Ack:
			return bind(s, ev)
		case Nak:
			s.Naks++
			return drop(s, ev)
		}
	}
	return s, nil
}

// bind enters Bound with the lease of an Ack.
func bind(s State, ev Event) (State, []Action) {
	l := ev.Reply.Lease
	l.Acquired = s.Sent
	s.Phase, s.Attempt, s.Naks, s.Lease, s.InUse = Bound, 0, 0, &l, true
	wake := Action{Kind: Wake}
	if l.Duration != Forever {
		wake.At = l.Acquired.Add(l.T1)
	}
	return s, []Action{{Kind: Apply, Lease: &l}, wake}
}

// drop ends the lease of the client, if it has a lease, and starts a new search. The search starts
// at once. After several Naks without an Ack, it starts after a back-off.
func drop(s State, ev Event) (State, []Action) {
	var out []Action
	if s.Lease != nil {
		out = []Action{{Kind: Drop}}
	}
	s.Lease, s.InUse = nil, false
	switch {
	case !s.Carrier:
		s.Phase = Init
		return s, append(out, Action{Kind: Wake})
	case s.Naks > 1 && s.Phase != Init:
		s.Phase = Init
		return s, append(out, Action{Kind: Wake, At: ev.At.Add(sendDelay(s.Naks-2, ev.Rand))})
	}
	s.Since = ev.At
	s, more := discover(s, ev)
	return s, append(out, more...)
}

// discover enters Selecting with a new transaction.
func discover(s State, ev Event) (State, []Action) {
	s.Phase, s.Attempt, s.XID = Selecting, 0, ev.Rand
	return sendDiscover(s, ev)
}

// maintain selects the next action by the age of the lease in use: wait before T1, renew before T2,
// rebind before the end, and then drop the lease.
func maintain(s State, ev Event) (State, []Action) {
	l, age := s.Lease, ev.At.Sub(s.Lease.Acquired)
	m := Message{XID: ev.Rand, Secs: secs(s, ev), Client: l.Address.Addr()}
	var until time.Duration
	switch {
	case l.Duration == Forever:
		s.Phase = Bound
		return s, []Action{{Kind: Wake}}
	case age < l.T1:
		s.Phase, s.Attempt = Bound, 0
		return s, []Action{{Kind: Wake, At: l.Acquired.Add(l.T1)}}
	case age >= l.Duration:
		return drop(s, ev)
	case age < l.T2:
		if s.Phase != Renewing {
			s.Phase, s.Attempt, s.Since, m.Secs = Renewing, 0, ev.At, 0
		}
		m.To, until = l.Server, l.T2
	default:
		if s.Phase != Rebinding {
			s.Phase, s.Attempt = Rebinding, 0
		}
		until = l.Duration
	}
	s.XID, s.Sent = ev.Rand, ev.At
	s.Attempt++
	wait := min(max((until-age)/2, minRenewInterval), until-age)
	return s, []Action{{Kind: Send, Message: m}, {Kind: Wake, At: ev.At.Add(wait)}}
}

func sendDiscover(s State, ev Event) (State, []Action) {
	s.Sent = ev.At
	m := Message{Discover: true, XID: s.XID, Secs: secs(s, ev)}
	return transmit(s, ev, m)
}

func sendRequest(s State, ev Event) (State, []Action) {
	m := Message{XID: s.XID, Secs: secs(s, ev), Requested: s.Offer.Address.Addr(), Server: s.Offer.Server}
	return transmit(s, ev, m)
}

func sendReboot(s State, ev Event) (State, []Action) {
	m := Message{XID: s.XID, Secs: secs(s, ev), Requested: s.Lease.Address.Addr()}
	return transmit(s, ev, m)
}

// transmit sends a message, and sets the timer for the next attempt.
func transmit(s State, ev Event, m Message) (State, []Action) {
	wait := sendDelay(s.Attempt, ev.Rand)
	s.Attempt++
	return s, []Action{{Kind: Send, Message: m}, {Kind: Wake, At: ev.At.Add(wait)}}
}

// sendDelay returns the delay after attempt n, counted from 0: minBackoff doubled n times, at most
// maxBackoff, with a jitter of ±25 % from rand.
func sendDelay(n int, rand uint32) time.Duration {
	wait := backoff.Backoff{Min: minBackoff, Max: maxBackoff}.Delay(n + 1)
	return wait*3/4 + time.Duration(float64(wait)/2*float64(rand)/(1<<32))
}

// secs returns the field secs of a message: the seconds since the search began.
func secs(s State, ev Event) uint16 {
	return uint16(min(max(ev.At.Sub(s.Since)/time.Second, 0), 0xffff))
}
