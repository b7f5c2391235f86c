package dhcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// Options configures a client.
type Options struct {
	Link string // name of the link
	// index of the link; another link with the same name needs a new client
	Index       int
	MAC         net.HardwareAddr // hardware address of the link, Ethernet only
	StoredLease *Lease           // lease of an earlier client, requested first; may be nil
	// InForce is true if the link still has the address of StoredLease. The address then stays in
	// use while the client contacts the server.
	InForce bool
	// Random returns a random number, for transaction IDs and jitter.
	Random func() uint32
	// The client calls Changed on its goroutine after every step. Changed must not block.
	Changed func(Status)
}

// Status is the observable state of a client.
type Status struct {
	Phase   Phase
	Lease   *Lease    // the lease in use, or nil
	Attempt int       // messages sent in this phase
	Since   time.Time // start of the current search for a lease
	Problem string    // last problem since the last Ack; may be empty
}

// Client runs the state machine on a link. New creates a client, and its user calls Run once.
type Client struct {
	opt     Options
	carrier chan bool // capacity 1: the newest report of SetCarrier

	mu       sync.Mutex // guards hostname and the sending to carrier
	hostname string

	state   State
	timer   *time.Timer
	sock    *socket
	problem string

	withAddress bool // sock is a UDP socket, because the link had its address
}

// New returns a client that sends nothing until SetCarrier reports a carrier.
func New(opt Options) *Client {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &Client{
		opt: opt, carrier: make(chan bool, 1), timer: t,
		state: State{Lease: opt.StoredLease, InUse: opt.InForce && opt.StoredLease != nil},
	}
}

// SetCarrier reports to the client whether the link has a carrier. It never blocks. A new report
// replaces a report that the client has not read yet, so the client can miss a short loss of the
// carrier.
func (c *Client) SetCarrier(up bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.carrier:
	default:
	}
	c.carrier <- up
}

// SetHostname sets the host name that the client sends (option 12) from the next message on. With
// an empty name, the client sends no host name.
func (c *Client) SetHostname(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hostname = name
}

// Run runs the client until ctx is done. It does not release the lease. The caller removes the
// address if necessary.
func (c *Client) Run(ctx context.Context) {
	defer c.timer.Stop()
	defer func() { c.sock.Close() }()
	for {
		ev := Event{}
		select {
		case <-ctx.Done():
			return
		case up := <-c.carrier:
			ev.Kind = LinkDown
			if up {
				ev.Kind = LinkUp
			}
		case <-c.timer.C:
			ev.Kind = Tick
		case p := <-c.sock.Messages():
			if p.OpCode != dhcpv4.OpcodeBootReply || !bytes.Equal(p.ClientHWAddr, c.opt.MAC) ||
				binary.BigEndian.Uint32(p.TransactionID[:]) != c.state.XID {
				continue
			}
			r, err := c.read(p)
			if err != nil {
				c.problem = err.Error()
				c.report()
				continue
			}
			ev.Kind, ev.Reply = Received, r
			if r.Kind == Nak {
				c.problem = fmt.Sprintf("server %v rejects the request: %q", r.Lease.Server, r.Text)
			}
		}
		c.step(ev)
	}
}

// read converts a message to a Reply. It fails if an option is truncated or if the message is
// unusable.
func (c *Client) read(p incoming) (*Reply, error) {
	if p.err != nil {
		return nil, fmt.Errorf("DHCP message from %v: cannot read: %w; check the server", p.ServerIPAddr, p.err)
	}
	return parseReply(p.DHCPv4)
}

// step passes an event to the state machine and performs the resulting actions.
func (c *Client) step(ev Event) {
	ev.At, ev.Rand = time.Now(), c.opt.Random()
	next, actions := Step(c.state, ev)
	c.state = next
	if s := c.state.Phase; s == Bound || s == Init {
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
			if notes := ev.Reply.Notes; len(notes) > 0 {
				c.problem = fmt.Sprintf("unusable options of server %v: %s", a.Lease.Server, strings.Join(notes, "; "))
			}
		}
	}
	c.report()
}

// report passes the present Status to the user.
func (c *Client) report() {
	st := Status{Phase: c.state.Phase, Attempt: c.state.Attempt, Since: c.state.Since, Problem: c.problem}
	if c.state.InUse {
		st.Lease = c.state.Lease
	}
	c.opt.Changed(st)
}

// send sends a message. While the link may have no address, it uses a packet socket. While the link
// has its address, it uses a UDP socket, because only the kernel knows the route to the server.
func (c *Client) send(m Message) error {
	c.mu.Lock()
	hostname := c.hostname
	c.mu.Unlock()
	p, err := encode(m, c.opt.MAC, hostname)
	if err != nil {
		return fmt.Errorf("DHCP message: cannot encode: %w", err)
	}
	withAddress := m.Client.IsValid()
	if c.sock == nil || c.withAddress != withAddress {
		c.sock.Close()
		c.sock, err = openSocket(c.opt.Link, c.opt.Index, c.opt.MAC, withAddress)
		if err != nil {
			return err
		}
		c.withAddress = withAddress
	}
	if gone, err := c.sock.Send(p.ToBytes(), destination(m)); err != nil {
		if gone {
			c.sock.Close()
			c.sock = nil
		}
		return fmt.Errorf("link %s: cannot send to the DHCP server: %w", c.opt.Link, err)
	}
	return nil
}
