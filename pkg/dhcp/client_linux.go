package dhcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"
)

// Options is what a client is made of.
type Options struct {
	Link string // the link's name
	// its index; a client ends with its link and is made again for a new one
	Index       int
	MAC         net.HardwareAddr // its hardware address, Ethernet only
	StoredLease *Lease           // a lease of an earlier life, asked for first; may be nil
	// whether the link still has Remembered's address: it is kept while the server is asked
	InForce bool
	// Random returns a random number; it makes transaction ids and spreads retransmissions.
	Random func() uint32
	// Changed is called from the client's goroutine after every step. It must not block.
	Changed func(Status)
}

// Status is what a client shows of itself.
type Status struct {
	Phase   Phase
	Lease   *Lease    // the lease in force, or nil
	Attempt int       // messages sent in this phase
	Since   time.Time // when the present search for a lease began
	Problem string    // the last thing that went wrong since a lease was in force; may be empty
}

// Client runs the state machine on a link. Make it with New and give it one Run.
type Client struct {
	opt     Options
	carrier chan bool // the newest report, at most one

	mu       sync.Mutex // guards carrier's senders and hostname
	hostname string

	state   State
	timer   *time.Timer
	sock    *socket
	problem string
}

// New returns a client that believes the link has no carrier until SetCarrier says otherwise.
func New(opt Options) *Client {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &Client{
		opt: opt, carrier: make(chan bool, 1), timer: t,
		state: State{Lease: opt.StoredLease, InUse: opt.InForce && opt.StoredLease != nil},
	}
}

// SetCarrier tells the client whether the link has a carrier. It never blocks; only the newest
// report counts, but a carrier that went and came back between two looks is seen as one that was
// never gone.
func (c *Client) SetCarrier(up bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.carrier:
	default:
	}
	c.carrier <- up
}

// SetHostname sets the name that is told to the server (option 12) from the next message on; empty
// tells none.
func (c *Client) SetHostname(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hostname = name
}

// Run works until ctx is done. It leaves the lease as it is: whoever stops a client takes the
// address away if it should go.
func (c *Client) Run(ctx context.Context) {
	defer c.timer.Stop()
	defer func() { c.sock.close() }()
	for {
		var packets <-chan incoming
		if c.sock != nil {
			packets = c.sock.packets
		}
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
		case p := <-packets:
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
				c.problem = fmt.Sprintf("server %v refuses: %q", r.Lease.Server, r.Text)
			}
		}
		c.step(ev)
	}
}

// read makes a reply of a message.
func (c *Client) read(p incoming) (*Reply, error) {
	if p.err != nil {
		return nil, fmt.Errorf("DHCP message from %v: cannot read: %w; check the server", p.ServerIPAddr, p.err)
	}
	return parseReply(p.DHCPv4)
}

// step gives an event to the machine and does what it answers.
func (c *Client) step(ev Event) {
	ev.At, ev.Rand = time.Now(), c.opt.Random()
	next, actions := Step(c.state, ev)
	c.state = next
	if s := c.state.Phase; s == Bound || s == Init {
		c.sock.close() // nothing is awaited: no packet shall wake the machine
		c.sock = nil
	}
	for _, a := range actions {
		switch a.Kind {
		case Send:
			if err := c.send(a.Message); err != nil {
				c.problem = err.Error() // the timer sends again
			}
		case Wake:
			c.timer.Stop()
			if !a.At.IsZero() {
				c.timer.Reset(time.Until(a.At))
			}
		case Apply:
			c.problem = ""
			if notes := ev.Reply.Notes; len(notes) > 0 {
				c.problem = fmt.Sprintf("of what server %v sent, not used: %s", a.Lease.Server, strings.Join(notes, "; "))
			}
		}
	}
	c.report()
}

func (c *Client) report() {
	st := Status{Phase: c.state.Phase, Attempt: c.state.Attempt, Since: c.state.Since, Problem: c.problem}
	if c.state.InUse {
		st.Lease = c.state.Lease
	}
	c.opt.Changed(st)
}

// send sends a message from the kind of socket that its phase needs: a packet socket while the link
// may have no address, a UDP socket afterwards, because only the kernel knows the way to the
// server.
func (c *Client) send(m Message) error {
	c.mu.Lock()
	hostname := c.hostname
	c.mu.Unlock()
	p, err := encode(m, c.opt.MAC, hostname)
	if err != nil {
		return fmt.Errorf("DHCP message: cannot make: %w", err)
	}
	withAddress := m.Client.IsValid()
	if c.sock == nil || c.sock.withAddress != withAddress {
		c.sock.close()
		c.sock, err = openSocket(c.opt.Link, c.opt.Index, c.opt.MAC, withAddress)
		if err != nil {
			return err
		}
	}
	if _, err := c.sock.conn.WriteTo(p.ToBytes(), destination(m)); err != nil {
		if errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) {
			c.sock.close()
			c.sock = nil
		}
		return fmt.Errorf("link %s: cannot send to the DHCP server: %w", c.opt.Link, err)
	}
	return nil
}
