package dhcp6

import (
	"net/netip"
	"slices"
	"time"

	"github.com/orlop-os/orlop/pkg/backoff"
)

// Phase is a state of the client.
type Phase int

// The phases. The phase is Init before the first message, during a wait, and while the link is not
// ready to send. In Init, a lease stays in use until it ends.
const (
	Init Phase = iota
	Soliciting
	Requesting
	Confirming
	Bound
	Renewing
	Rebinding
	Informing
	Informed
	Declining
	Releasing
	Released
)

func (p Phase) String() string {
	return [...]string{"init", "soliciting", "requesting", "confirming", "bound", "renewing", "rebinding", "informing", "informed", "declining", "releasing", "released"}[p]
}

// Mode selects the requests of a client. The zero Mode requests settings only.
type Mode struct {
	Addresses bool // addresses (IA_NA)
	// Prefix is the requested length of a delegated prefix (IA_PD) in bits, a hint for the server.
	// 0 requests no prefix.
	Prefix int
}

// State is the state of the state machine. A State with only a Mode is the state of a new client.
// To confirm a stored lease first, set Lease and leave InUse false.
type State struct {
	Mode  Mode
	Phase Phase
	Ready bool   // the link can send
	XID   uint32 // transaction ID of the current exchange, 24 bits
	// when the client sent the request of the current exchange; the times of the granted lease
	// count from it (Lease.Acquired)
	Sent    time.Time
	Since   time.Time // start of the current exchange; the elapsed time counts from it
	Attempt int       // messages sent in this phase
	Rejects int       // rejections and duplicates since a lease was last confirmed or renewed
	// the best Advertise (Soliciting), the chosen server and its offer (Requesting), or the
	// returned lease (Declining, Releasing)
	Offer *Reply
	Lease *Lease // the lease in use, or the stored lease
	InUse bool   // Lease is in use
	// MaxWait is the longest interval between messages without a lease; 0 selects maxBackoff.
	MaxWait time.Duration
}

// EventKind is the type of an event.
type EventKind int

// Events of a client.
const (
	LinkReady    EventKind = iota + 1 // the link can send
	LinkNotReady                      // the link cannot send any more
	Tick                              // the timer of the last action Wake has expired
	Received                          // a server's message was received
	Duplicate                         // another machine has Event.Addr
	// the client must return its lease and end; the link has no address of the lease any more
	Release
)

// Event is an input of the state machine. At is the present time, with a monotonic reading (as from
// time.Now). Rand is a new random number for the transaction ID and the jitter.
type Event struct {
	Kind  EventKind
	At    time.Time
	Rand  uint32
	Reply *Reply     // Received only
	Addr  netip.Addr // Duplicate only
}

// ActionKind is the type of an action.
type ActionKind int

// Actions that Client performs for the state machine.
const (
	Send ActionKind = iota + 1 // send Message
	// set the timer: Tick occurs at At; the zero time stops the timer
	Wake
	Apply // Lease is in use now: the network controller configures and stores it
	Drop  // no lease is in use now: the controller removes the addresses and the stored lease
	End   // the client has ended
)

// Action is an output of the state machine.
type Action struct {
	Kind    ActionKind
	Message Message
	At      time.Time
	Lease   *Lease
}

// MessageKind is the type of a client's message.
type MessageKind int

// The messages of a client (RFC 8415 section 7.3).
const (
	Solicit MessageKind = iota + 1
	Request
	Confirm
	Renew
	Rebind
	ReleaseMessage
	Decline
	InformationRequest
)

func (k MessageKind) String() string {
	return [...]string{"", "solicit", "request", "confirm", "renew", "rebind", "release", "decline", "information-request"}[k]
}

// Message is a message to send. It has only the fields in which the messages of the phases differ.
type Message struct {
	Kind    MessageKind
	XID     uint32
	Elapsed time.Duration // since the exchange began
	Server  string        // DUID of the server; empty for a message to any server
	Mode    Mode          // the identity associations to send
	// Lease has the addresses and prefixes that the message contains. It is nil if the message
	// contains none.
	Lease *Lease
}

// Intervals and numbers of attempts. The package comment has the reason for the first interval.
const (
	minBackoff       = 250 * time.Millisecond
	maxBackoff       = 2 * time.Minute
	minRenewInterval = 10 * time.Second // REN_TIMEOUT and REB_TIMEOUT (RFC 8415 section 7.6)
	requestAttempts  = 5                // 8 s in total
	confirmAttempts  = 3                // 2 s in total
	leaveAttempts    = 4                // attempts of Release and Decline (REL_MAX_RC)
)

// Step is the client's state machine.
//
//	phase        event                      next        actions
//	Init         ready, no lease            Soliciting  send Solicit
//	Init         ready, settings only       Informing   send Information-request
//	Init         ready, lease known         Confirming  send Confirm, or Rebind for a prefix
//	Init         Tick, ready                Soliciting  send Solicit (end of a wait)
//	Soliciting   Advertise                  Soliciting  store the best; at preference 255: as Tick
//	Soliciting   Tick, advertised           Requesting  send Request
//	Soliciting   Reply with rapid commit    Bound       apply
//	Soliciting   Tick                       Soliciting  send Solicit, double the interval
//	Requesting   Reply                      Bound       apply
//	Requesting   rejection                  Init        wait, then start again
//	Requesting   Tick                       Requesting  send Request; after 5 attempts: Soliciting
//	Confirming   Reply                      Bound       apply
//	Confirming   rejection                  Soliciting  drop, send Solicit
//	Confirming   Tick                       Confirming  send again; after 3 attempts:
//	                                                    a lease in use stays (Bound, Renewing or
//	                                                    Rebinding by its age); drop a stored lease
//	Bound        Tick at T1                 Renewing    send Renew to the server
//	Renewing     Reply                      Bound       apply
//	Renewing     no binding                 Requesting  send Request, the lease stays in use
//	Renewing     withdrawn                  Soliciting  drop, send Solicit
//	Renewing     Tick                       Renewing    send Renew; at T2: Rebinding
//	Rebinding    as Renewing                as Renewing send Rebind to any server; at end: drop
//	Informing    Reply                      Informed    apply
//	Informed     Tick at refresh time       Informing   send Information-request
//	leased       Duplicate                  Declining   drop, send Decline
//	Declining    Reply, or 4 attempts       Init        wait, then start again
//	leased       Release                    Releasing   drop, send Release
//	Releasing    Reply, or 4 attempts       Released    end
//	any          not ready                  Init        the lease stays in use until it ends
//
// The actions apply and drop are the ActionKinds Apply and Drop. "leased" is any phase in which a
// lease is in use. Other events change no state. Messages with another transaction ID are ignored.
func Step(s State, ev Event) (State, []Action) {
	switch ev.Kind {
	case LinkReady:
		return ready(s, ev)
	case LinkNotReady:
		if s.Phase == Releasing || s.Phase == Released {
			return end(s)
		}
		s.Ready, s.Phase, s.Attempt, s.Offer = false, Init, 0, nil
		return s, []Action{{Kind: Wake, At: s.ends()}}
	case Tick:
		return tick(s, ev)
	case Received:
		if ev.Reply != nil && ev.Reply.XID == s.XID {
			return received(s, ev)
		}
	case Duplicate:
		if s.InUse && s.Lease.Has(ev.Addr) && s.Phase != Releasing {
			return decline(s, ev)
		}
	case Release:
		return release(s, ev)
	}
	return s, nil
}

// ends returns the time at which the first address or prefix in use ends; the zero time if none
// ends.
func (s State) ends() time.Time {
	if !s.InUse {
		return time.Time{}
	}
	return s.Lease.next()
}

func ready(s State, ev Event) (State, []Action) {
	if s.Ready || s.Phase == Releasing || s.Phase == Released {
		return s, nil
	}
	s.Ready, s.Since, s.MaxWait = true, ev.At, 0
	switch {
	case s.Mode == Mode{}:
		return inform(s, ev)
	case s.Lease == nil || s.Lease.stateless() || s.Lease.expired(ev.At) || s.Mode.Addresses && len(s.Lease.Addresses) == 0:
		return drop(s, ev)
	}
	s.Phase, s.Attempt, s.XID, s.Sent = Confirming, 0, ev.xid(), ev.At
	return confirm(s, ev)
}

func (ev Event) xid() uint32 { return ev.Rand & 0xffffff }

// tick removes the addresses and prefixes that have ended from the lease in use, and then performs
// the step of the phase.
func tick(s State, ev Event) (State, []Action) {
	var out []Action
	if s.InUse {
		if l := s.Lease.alive(ev.At); l != s.Lease && !s.Lease.expired(ev.At) {
			s.Lease, out = l, []Action{{Kind: Apply, Lease: l}}
		}
	}
	s, more := act(s, ev)
	return s, append(out, more...)
}

// act performs the step of the phase when its timer has expired.
func act(s State, ev Event) (State, []Action) {
	if s.InUse && s.Lease.expired(ev.At) && s.Phase != Init {
		return drop(s, ev)
	}
	switch s.Phase {
	case Init:
		switch {
		case s.InUse && s.Lease.expired(ev.At):
			return drop(s, ev)
		case s.Ready:
			return solicit(s, ev)
		}
		return s, []Action{{Kind: Wake, At: s.ends()}}
	case Soliciting:
		if s.Offer != nil {
			return request(s, ev)
		}
		return transmit(s, ev, Message{Kind: Solicit, Lease: s.inUse()})
	case Requesting:
		if s.Attempt < requestAttempts {
			return sendRequest(s, ev)
		}
		return solicit(s, ev)
	case Confirming:
		switch {
		case s.Attempt < confirmAttempts:
			return confirm(s, ev)
		case s.InUse:
			return maintain(s, ev)
		}
		return drop(s, ev)
	case Bound, Renewing, Rebinding:
		return maintain(s, ev)
	case Informing:
		s.Sent = ev.At
		return transmit(s, ev, Message{Kind: InformationRequest})
	case Informed:
		return inform(s, ev)
	case Declining, Releasing:
		if s.Attempt < leaveAttempts {
			return sendLeave(s, ev)
		}
		return endLeave(s, ev)
	}
	return s, nil
}

// inUse returns the lease in use, or nil.
func (s State) inUse() *Lease {
	if s.InUse {
		return s.Lease
	}
	return nil
}

func received(s State, ev Event) (State, []Action) {
	r := ev.Reply
	if r.MaxWait != 0 {
		s.MaxWait = r.MaxWait
	}
	switch s.Phase {
	case Soliciting:
		switch {
		case !r.grants(s.Mode):
			return s, nil
		case !r.Advertise && r.Rapid:
			return bind(s, ev)
		case !r.Advertise:
			return s, nil
		}
		if s.Offer == nil || r.Preference > s.Offer.Preference {
			s.Offer = r
		}
		if r.Preference == 255 {
			return request(s, ev)
		}
	case Informing:
		if !r.Advertise && r.Rejects == "" {
			return bind(s, ev)
		}
	case Requesting, Confirming, Renewing, Rebinding:
		if r.Advertise || s.Phase == Requesting && r.Lease.Server != s.Offer.Lease.Server {
			return s, nil // no Reply, or a Reply of another server than the chosen server
		}
		return answered(s, ev)
	case Declining, Releasing:
		if !r.Advertise && r.Lease.Server == s.Offer.Lease.Server {
			return endLeave(s, ev)
		}
	}
	return s, nil
}

// answered acts on the Reply to a Request, Confirm, Renew or Rebind.
func answered(s State, ev Event) (State, []Action) {
	r := ev.Reply
	switch {
	case r.grants(s.Mode):
		return bind(s, ev)
	case s.Phase == Confirming && s.Mode.Prefix == 0 && r.Rejects == "" && !r.NoBinding:
		// The Reply to a Confirm contains no address: it means that the addresses of the lease are
		// valid.
		s.Rejects, s.InUse = 0, true
		s, more := maintain(s, ev)
		return s, append([]Action{{Kind: Apply, Lease: s.Lease}}, more...)
	case (s.Phase == Renewing || s.Phase == Rebinding) && r.NoBinding:
		s.Offer = r
		return request(s, ev)
	case s.Phase != Requesting && r.Withdrawn:
		return drop(s, ev)
	case s.Phase == Requesting, s.Phase == Confirming && r.Rejects != "":
		s.Rejects++
		return drop(s, ev)
	}
	return s, nil // the lease stays in use until it ends; another server may extend it
}

// bind enters Bound with the lease of a Reply, or Informed with its settings.
func bind(s State, ev Event) (State, []Action) {
	l := ev.Reply.Lease
	l.Acquired = s.Sent
	// a new address can be a duplicate, so a new lease does not reset Rejects
	if s.Phase != Requesting && s.Phase != Soliciting {
		s.Rejects = 0
	}
	s.Phase, s.Attempt, s.Offer, s.Lease, s.InUse = Bound, 0, nil, &l, true
	if s.Mode == (Mode{}) {
		s.Phase = Informed
		l.Addresses, l.Prefixes = nil, nil
		return s, []Action{{Kind: Apply, Lease: &l}, {Kind: Wake, At: l.Acquired.Add(l.T1)}}
	}
	return s, []Action{{Kind: Apply, Lease: &l}, {Kind: Wake, At: earliest(l.renewal(), l.next())}}
}

// renewal returns the time at which the client renews the lease; the zero time if it never does.
func (l *Lease) renewal() time.Time {
	if l.T1 >= Forever {
		return time.Time{}
	}
	return l.Acquired.Add(l.T1)
}

// earliest returns the earlier of two times. A zero time counts as never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// drop ends the lease of the client, if it has a lease, and starts a new search. The search starts
// at once. After several rejections without a success, it starts after a back-off.
func drop(s State, ev Event) (State, []Action) {
	var out []Action
	if s.Lease != nil {
		out = []Action{{Kind: Drop}}
	}
	s.Lease, s.InUse, s.Offer = nil, false, nil
	switch {
	case !s.Ready:
		s.Phase = Init
		return s, append(out, Action{Kind: Wake})
	case s.Rejects > 1 && s.Phase != Init:
		s.Phase = Init
		return s, append(out, Action{Kind: Wake, At: ev.At.Add(s.delay(s.Rejects-2, ev.Rand))})
	}
	s, more := solicit(s, ev)
	return s, append(out, more...)
}

// solicit enters Soliciting, or Informing if the mode requests settings only.
func solicit(s State, ev Event) (State, []Action) {
	if s.Mode == (Mode{}) {
		return inform(s, ev)
	}
	s.Phase, s.Attempt, s.XID, s.Since, s.Sent, s.Offer = Soliciting, 0, ev.xid(), ev.At, ev.At, nil
	return transmit(s, ev, Message{Kind: Solicit, Lease: s.inUse()})
}

// request enters Requesting with the server in s.Offer.
func request(s State, ev Event) (State, []Action) {
	s.Phase, s.Attempt, s.XID, s.Since, s.Sent = Requesting, 0, ev.xid(), ev.At, ev.At
	return sendRequest(s, ev)
}

func sendRequest(s State, ev Event) (State, []Action) {
	wanted := &s.Offer.Lease
	if s.InUse {
		wanted = s.Lease
	}
	return transmit(s, ev, Message{Kind: Request, Server: s.Offer.Lease.Server, Lease: wanted})
}

// confirm sends a Confirm, to which a server replies whether the addresses of a stored lease are
// valid on the link. If the mode includes a prefix, confirm sends a Rebind instead (RFC 8415
// section 18.2.12).
func confirm(s State, ev Event) (State, []Action) {
	m := Message{Kind: Confirm, Lease: s.Lease}
	if s.Mode.Prefix != 0 {
		m.Kind = Rebind
	}
	return transmit(s, ev, m)
}

func inform(s State, ev Event) (State, []Action) {
	s.Phase, s.Attempt, s.XID, s.Since, s.Sent = Informing, 0, ev.xid(), ev.At, ev.At
	return transmit(s, ev, Message{Kind: InformationRequest})
}

// maintain selects the next action by the age of the lease in use: wait before T1, renew before T2,
// rebind before the end, and then drop the lease.
func maintain(s State, ev Event) (State, []Action) {
	l, age := s.Lease, ev.At.Sub(s.Lease.Acquired)
	m := Message{Kind: Renew, Server: l.Server, Lease: l}
	until := l.T2
	switch {
	case l.expired(ev.At):
		return drop(s, ev)
	case l.T1 >= Forever || age < l.T1:
		s.Phase, s.Attempt = Bound, 0
		return s, []Action{{Kind: Wake, At: earliest(l.renewal(), l.next())}}
	case l.T2 >= Forever || age < l.T2:
		if s.Phase != Renewing {
			s.Phase, s.Attempt, s.Since = Renewing, 0, ev.At
		}
	default:
		if s.Phase != Rebinding {
			s.Phase, s.Attempt, s.Since = Rebinding, 0, ev.At
		}
		m.Kind, m.Server, until = Rebind, "", slices.Max(l.valid())
	}
	s.XID, s.Sent = ev.xid(), ev.At
	s.Attempt++
	m.XID, m.Mode, m.Elapsed = s.XID, s.Mode, ev.At.Sub(s.Since)
	wait := min(max((until-age)/2, minRenewInterval), until-age)
	return s, []Action{{Kind: Send, Message: m}, {Kind: Wake, At: earliest(ev.At.Add(wait), l.next())}}
}

// decline reports to the server that another machine has an address of the lease, and ends the
// lease.
func decline(s State, ev Event) (State, []Action) {
	bad := *s.Lease
	bad.Addresses = slices.DeleteFunc(slices.Clone(bad.Addresses), func(a Address) bool { return a.Addr != ev.Addr })
	bad.Prefixes = nil
	s.Rejects++
	return leave(s, ev, Declining, &bad)
}

// release returns the lease to its server. It ends the client at once if there is no lease to
// return, or if the link cannot send.
func release(s State, ev Event) (State, []Action) {
	switch {
	case s.Phase == Releasing || s.Phase == Released:
		return s, nil
	case !s.InUse || s.Lease.stateless() || !s.Ready:
		return end(s)
	}
	return leave(s, ev, Releasing, s.Lease)
}

// leave ends the use of the lease. If the link can send, it then sends a Decline or a Release, by
// phase, with the addresses and prefixes of l. Offer holds l for the retransmissions.
func leave(s State, ev Event, phase Phase, l *Lease) (State, []Action) {
	s.Lease, s.InUse, s.Offer = nil, false, &Reply{Lease: *l}
	if !s.Ready {
		s.Phase = Init
		return s, []Action{{Kind: Drop}, {Kind: Wake}}
	}
	s.Phase, s.Attempt, s.XID, s.Since = phase, 0, ev.xid(), ev.At
	s, more := sendLeave(s, ev)
	return s, append([]Action{{Kind: Drop}}, more...)
}

// sendLeave sends the Decline or the Release.
func sendLeave(s State, ev Event) (State, []Action) {
	m := Message{Kind: Decline, Server: s.Offer.Lease.Server, Lease: &s.Offer.Lease}
	if s.Phase == Releasing {
		m.Kind = ReleaseMessage
	}
	return transmit(s, ev, m)
}

// endLeave ends the phase Releasing or Declining. After a Release, the client ends. After a
// Decline, it waits and then starts again.
func endLeave(s State, ev Event) (State, []Action) {
	if s.Phase == Releasing {
		return end(s)
	}
	s.Phase, s.Offer = Init, nil
	return s, []Action{{Kind: Wake, At: ev.At.Add(s.delay(s.Rejects-1, ev.Rand))}}
}

// end ends the client.
func end(s State) (State, []Action) {
	var out []Action
	if s.Lease != nil {
		out = []Action{{Kind: Drop}}
	}
	s.Phase, s.Lease, s.InUse, s.Offer = Released, nil, false, nil
	return s, append(out, Action{Kind: Wake}, Action{Kind: End})
}

// transmit sends a message, and sets the timer for the next attempt.
func transmit(s State, ev Event, m Message) (State, []Action) {
	m.XID, m.Mode, m.Elapsed = s.XID, s.Mode, max(ev.At.Sub(s.Since), 0)
	wake := ev.At.Add(s.delay(s.Attempt, ev.Rand))
	s.Attempt++
	return s, []Action{{Kind: Send, Message: m}, {Kind: Wake, At: earliest(wake, s.ends())}}
}

// delay returns the delay after attempt n, counted from 0: minBackoff doubled n times, at most
// MaxWait, with a jitter of ±25 % from rand.
func (s State) delay(n int, rand uint32) time.Duration {
	longest := s.MaxWait
	if longest == 0 {
		longest = maxBackoff
	}
	wait := backoff.Backoff{Min: minBackoff, Max: longest}.Delay(n + 1)
	return wait*3/4 + time.Duration(float64(wait)/2*float64(rand)/(1<<32))
}
