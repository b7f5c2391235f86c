package dhcp6

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/orlop-os/orlop/machined/network/linksocket"
	"github.com/orlop-os/orlop/pkg/panics"
)

// Options configures a client.
type Options struct {
	Link string // name of the link
	// index of the link; another link with the same name needs a new client
	Index       int
	DUID        []byte  // DUID of the machine
	IAID        [4]byte // IAID of the link
	Mode        Mode
	StoredLease *Lease // lease of an earlier client, which this client confirms first; may be nil
	// InForce means that the link still has the addresses of StoredLease. The addresses stay in use
	// while the client contacts the server.
	InForce bool
	// Random returns a random number, for transaction IDs and jitter.
	Random func() uint32
	// The client calls Changed on its goroutine after every step. Changed must not block.
	Changed func(Status)
}

// Status is the observable state of a client.
type Status struct {
	Mode    Mode
	Phase   Phase
	Lease   *Lease    // the lease in use, or nil
	Attempt int       // messages sent in this phase
	Since   time.Time // start of the current exchange
	Problem string    // last problem since the last Apply action; may be empty
}

// Client runs the state machine on a link. New creates a client, and its user calls Run once.
type Client struct {
	opt    Options
	events chan Event // events that the user has reported and the client has not read yet

	mu       sync.Mutex // guards hostname
	hostname string

	state   State
	timer   *time.Timer
	sock    *socket
	problem string
	ended   bool
}

// maxReports is the number of reports that wait until the client reads them. The number is ample,
// because a link has few addresses and its carrier changes rarely.
const maxReports = 64

// New returns a client that sends nothing until SetReady is called.
func New(opt Options) *Client {
	t := time.NewTimer(time.Hour)
	t.Stop()
	stored := opt.StoredLease.within(opt.Mode)
	return &Client{
		opt: opt, events: make(chan Event, maxReports), timer: t,
		state: State{Mode: opt.Mode, Lease: stored, InUse: opt.InForce && stored != nil},
	}
}

// The method within returns the part of a lease that a mode requests; nil if the lease has no such
// part.
func (l *Lease) within(m Mode) *Lease {
	if l == nil {
		return nil
	}
	out := *l
	if !m.Addresses {
		out.Addresses = nil
	}
	if m.Prefix == 0 {
		out.Prefixes = nil
	}
	if out.stateless() != (m == Mode{}) {
		return nil
	}
	return &out
}

// report passes an event to the client. It never blocks. If maxReports events are waiting, it drops
// the event; the user of the client reports again with the next change of the link.
func (c *Client) report(ev Event) {
	select {
	case c.events <- ev:
	default:
	}
}

// SetReady reports to the client whether the link can send.
func (c *Client) SetReady(ready bool) {
	ev := Event{Kind: LinkNotReady}
	if ready {
		ev.Kind = LinkReady
	}
	c.report(ev)
}

// Duplicate reports to the client that another machine has the address a of the lease.
func (c *Client) Duplicate(a netip.Addr) { c.report(Event{Kind: Duplicate, Addr: a}) }

// Release tells the client to return the lease to its server, and then to end Run. The caller has
// removed the addresses of the lease before.
func (c *Client) Release() { c.report(Event{Kind: Release}) }

// SetHostname sets the host name that the client sends (option 39) from the next message on. With
// an empty name, the client sends no host name.
func (c *Client) SetHostname(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hostname = name
}

// Run runs the client until ctx is done, or until the lease is released after a call of Release. If
// only ctx is done, the client does not release the lease.
func (c *Client) Run(ctx context.Context) {
	defer c.timer.Stop()
	defer func() { c.sock.Close() }()
	for !c.ended {
		ev := Event{}
		select {
		case <-ctx.Done():
			return
		case ev = <-c.events:
		case <-c.timer.C:
			ev.Kind = Tick
		case in := <-c.sock.Messages():
			if in.xid != c.state.XID {
				continue
			}
			if in.err != nil {
				c.problem = in.err.Error()
				c.publish()
				continue
			}
			ev.Kind, ev.Reply = Received, in.reply
			if in.reply.Rejects != "" {
				c.problem = "the DHCPv6 server rejects the request: " + in.reply.Rejects
			}
		}
		c.step(ev)
	}
}

// step passes an event to the state machine and performs the resulting actions.
func (c *Client) step(ev Event) {
	ev.At, ev.Rand = time.Now(), c.opt.Random()
	next, actions := Step(c.state, ev)
	c.state = next
	switch c.state.Phase {
	case Bound, Init, Informed, Released:
		c.sock.Close() // the client expects no message now, so no packet needs to wake the process
		c.sock = nil
	}
	for _, a := range actions {
		switch a.Kind {
		case Send:
			if err := c.send(a.Message); err != nil {
				c.problem = err.Error() // the message is sent again when the timer expires
			}
		case Wake:
			c.timer.Stop()
			if !a.At.IsZero() {
				c.timer.Reset(time.Until(a.At))
			}
		case Apply:
			c.problem = ""
			if ev.Reply != nil && len(ev.Reply.Notes) > 0 {
				c.problem = "unusable parts of the answer of the DHCPv6 server: " + ev.Reply.summary()
			}
		case End:
			c.ended = true
		}
	}
	if ev.Kind == Duplicate && c.state.Phase == Declining {
		c.problem = fmt.Sprintf("another machine has the address %v of the DHCPv6 server", ev.Addr)
	}
	c.publish()
}

// publish passes the present Status to the user.
func (c *Client) publish() {
	st := Status{Mode: c.opt.Mode, Phase: c.state.Phase, Attempt: c.state.Attempt, Since: c.state.Since, Problem: c.problem, Lease: c.state.inUse()}
	c.opt.Changed(st)
}

func (c *Client) send(m Message) error {
	c.mu.Lock()
	hostname := c.hostname
	c.mu.Unlock()
	self := identity{duid: c.opt.DUID, iaid: c.opt.IAID}
	if c.sock == nil {
		var err error
		if c.sock, err = openSocket(c.opt.Link, self); err != nil {
			return err
		}
	}
	// The destination is All_DHCP_Relay_Agents_and_Servers (RFC 8415 section 7.1). The zone is the
	// index of the link. A name would be unreliable: package net caches the index of a name for a
	// minute, and a replugged link has another index.
	to := netip.AddrPortFrom(netip.MustParseAddr("ff02::1:2").WithZone(strconv.Itoa(c.opt.Index)), serverPort)
	if gone, err := c.sock.Send(encode(m, self, hostname), net.UDPAddrFromAddrPort(to)); err != nil {
		if gone {
			c.sock.Close()
			c.sock = nil
		}
		return fmt.Errorf("DHCPv6: cannot send: %w", err)
	}
	return nil
}

// task names the goroutine that reads messages, in reports of panics.
const task = "DHCPv6 on a link"

type socket = linksocket.Socket[incoming]

// incoming is a message of a server: the parsed message, or the reason why it is rejected.
type incoming struct {
	xid   uint32
	reply *Reply
	err   error
}

func openSocket(link string, self identity) (*socket, error) {
	conn, err := linksocket.Listen("udp6", link, clientPort, false)
	if err != nil {
		return nil, fmt.Errorf("DHCPv6: cannot open a socket: %w", err)
	}
	return linksocket.Read(conn, task, maxMessage, func(b []byte, from net.Addr) (incoming, bool) { return decode(b, from, self) }), nil
}

// decode parses a message of a server. It returns false if the data is no message of a server to
// this client.
func decode(b []byte, from net.Addr, self identity) (in incoming, ok bool) {
	// Servers and relays send from a link-local address of the link (RFC 8415 section 16). A
	// message from another address is forged.
	if u, ok := from.(*net.UDPAddr); !ok || !u.IP.IsLinkLocalUnicast() {
		return incoming{}, false
	}
	in.err = panics.Do(task, func() (err error) { in.reply, err = parse(b, self); return err })
	if errors.Is(in.err, errNotDHCP) {
		return incoming{}, false
	}
	in.xid = uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	return in, true
}
