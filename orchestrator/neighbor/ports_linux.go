package neighbor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/kernel/rtnl"
)

// portKey identifies a port by a link and an address family. A link that gets another MAC gets
// another port.
type portKey struct {
	index int
	MAC   MAC
	six   bool
}

// Role is a machine's role for an address.
type Role int

// The roles. In each role except None, the machine receives the claims of other machines.
const (
	None   Role = iota
	Listen      // only receive claims
	// announce the address, which is the machine's own; the kernel answers requests
	Present
	Answer // answer requests for the address, and announce it
)

// Mode is the role of a machine on a set of links.
type Mode struct {
	Role  Role
	Links []Link
}

// Sockets holds the machine's sockets on its links. It is not safe for concurrent use. Make it with
// NewSockets.
type Sockets struct {
	// Heard receives the claims of other machines. If the channel is full, a claim is dropped,
	// because the other machine repeats it.
	Heard chan SeenAddress
	// Failed receives ports that failed. The caller must pass each Failure to Drop.
	Failed chan Failure
	open   map[portKey]*port
}

// Failure is a failed port and its error.
type Failure struct {
	Err  error
	port *port
}

// NewSockets returns Sockets without open ports.
func NewSockets() *Sockets {
	return &Sockets{open: map[portKey]*port{}, Heard: make(chan SeenAddress, 64), Failed: make(chan Failure, 16)}
}

// Apply opens and closes ports until the machine has exactly the given modes. It returns the errors
// of all modes that failed. The next call of Apply retries them.
func (ps *Sockets) Apply(duties map[netip.Addr]Mode) error {
	want, links := map[portKey]map[netip.Addr]Role{}, map[portKey]Link{}
	for a, duty := range duties {
		for _, l := range duty.Links {
			at := portKey{l.Index, l.MAC, a.Is6()}
			if want[at] == nil {
				want[at] = map[netip.Addr]Role{}
			}
			want[at][a], links[at] = duty.Role, l
		}
	}
	for at := range ps.open {
		if _, wanted := want[at]; !wanted {
			ps.close(at)
		}
	}
	var errs []error
	for at, roles := range want {
		if ps.open[at] == nil {
			p, err := openPort(links[at], at.six)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			ps.open[at] = p
			go ps.serve(p)
		}
		errs = append(errs, ps.open[at].set(roles))
	}
	return errors.Join(errs...)
}

func (ps *Sockets) serve(p *port) {
	err := p.serve(func(c SeenAddress) {
		select {
		case ps.Heard <- c:
		default:
		}
	})
	if err != nil {
		ps.Failed <- Failure{err, p}
	}
}

// Drop closes a failed port. The next call of Apply opens a new port.
func (ps *Sockets) Drop(f Failure) {
	for at, open := range ps.open {
		if open == f.port {
			ps.close(at)
		}
	}
}

func (ps *Sockets) close(at portKey) {
	ps.open[at].close()
	delete(ps.open, at)
}

// Close closes all ports.
func (ps *Sockets) Close() {
	for at := range maps.Clone(ps.open) {
		ps.close(at)
	}
}

// Announce announces the addresses on each link where the machine has the role Present or Answer
// for them.
func (ps *Sockets) Announce(addresses []netip.Addr) error {
	return ps.send(addresses, func(r Role) bool { return r == Present || r == Answer }, (*port).announce)
}

// Probe sends probes for the addresses on each link where the machine has a role for them. Heard
// receives the answers.
func (ps *Sockets) Probe(addresses []netip.Addr) error {
	return ps.send(addresses, func(r Role) bool { return r != None }, (*port).probe)
}

// Solicit sends a unicast request to each of the machines, on the link that received the machine's
// claim. links are this machine's current links. The kernel of the other machine answers even if
// none of its processes runs, because the request is that of an ordinary neighbor. Heard receives
// the answers.
func (ps *Sockets) Solicit(whom []SeenAddress, links []Link) error {
	var errs []error
	for _, c := range whom {
		for _, p := range ps.open {
			if from := source(c, links); p.link.Name == c.Link && p.six == c.Address.Is6() && from.IsValid() {
				errs = append(errs, p.solicit(from, c))
			}
		}
	}
	return errors.Join(errs...)
}

func (ps *Sockets) send(addresses []netip.Addr, where func(Role) bool, how func(*port, netip.Addr) error) error {
	var errs []error
	for _, p := range ps.open {
		for _, a := range addresses {
			if where(p.role(a)) {
				errs = append(errs, how(p, a))
			}
		}
	}
	return errors.Join(errs...)
}

// ReadLinks returns the links on which the machine can answer: Ethernet links that are up and have
// an address that is not link-local.
func ReadLinks() ([]Link, error) {
	all, err := rtnl.Consistent(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("links: cannot list: %w", err)
	}
	addresses, err := rtnl.Consistent(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("addresses: cannot list: %w", err)
	}
	var links []Link
	for _, one := range all {
		attrs := one.Attrs()
		if attrs.EncapType != "ether" || len(attrs.HardwareAddr) != len(MAC{}) || attrs.Flags&net.FlagUp == 0 || attrs.Flags&net.FlagRunning == 0 {
			continue
		}
		l := Link{Index: attrs.Index, Name: attrs.Name, MAC: MAC(attrs.HardwareAddr)}
		for _, a := range addresses {
			ip, ok := netip.AddrFromSlice(a.IP)
			bits, _ := a.Mask.Size()
			if ip = ip.Unmap(); a.LinkIndex == l.Index && ok && !ip.IsLinkLocalUnicast() {
				l.Networks = append(l.Networks, netip.PrefixFrom(ip, bits))
			}
		}
		if len(l.Networks) > 0 {
			slices.SortFunc(l.Networks, netip.Prefix.Compare)
			links = append(links, l)
		}
	}
	return links, nil
}

// WithLinks calls run with a channel that receives a signal at the beginning and after each change
// of links or addresses. It returns nil when ctx is done, and an error if run or the subscription
// to the kernel's changes fails.
func WithLinks(ctx context.Context, run func(ctx context.Context, links <-chan struct{}) error) error {
	watcher, err := rtnl.Subscribe()
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	links := cell.NewSignal()
	links.Wake()
	go func() { stop(watcher.Run(ctx, onLinks(links))) }()
	if err := run(ctx, links); err != nil {
		return err
	}
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// onLinks returns a function that wakes changed after a change of links or addresses. It ignores
// veth links, which belong to pods.
func onLinks(changed cell.Signal) func(rtnl.Change) {
	return func(c rtnl.Change) {
		switch c.Kind {
		case rtnl.RouteChanged, rtnl.AdvertisementChanged, rtnl.RouterOption:
			return
		}
		if c.LinkKind == "veth" {
			return
		}
		changed.Wake()
	}
}
