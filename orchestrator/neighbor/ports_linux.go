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

// portKey identifies a port: the current state of a link, and a family.
type portKey struct {
	index int
	MAC   MAC
	six   bool
}

// Role is a machine's role for an address.
type Role int

// The roles.
const (
	None   Role = iota
	Listen      // receive other machines' claims of it
	// announce it and receive other machines' claims: it is the machine's own address, and the
	// kernel answers
	Present
	Answer // answer for it and receive other machines' claims
)

// Mode is a role on some links.
type Mode struct {
	Role  Role
	Links []Link
}

// Sockets are the machine's sockets on its links. They are not safe for concurrent use; make them
// with NewSockets.
type Sockets struct {
	// Heard receives the claims of other machines. Claims are dropped if the channel is full,
	// because machines repeat them.
	Heard chan SeenAddress
	// Failed receives ports that failed; the caller must pass each to Drop.
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

// Apply makes the machine act in the given modes and in no others. The next call retries failed
// modes.
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

// Drop closes a failed port, so that Apply opens a new port.
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

// Announce announces these addresses, on the links where the machine has them or answers for them.
func (ps *Sockets) Announce(addresses []netip.Addr) error {
	return ps.send(addresses, func(r Role) bool { return r == Present || r == Answer }, (*port).announce)
}

// Probe probes these addresses, on the links where the machine has a role for them. Heard receives
// the answers.
func (ps *Sockets) Probe(addresses []netip.Addr) error {
	return ps.send(addresses, func(r Role) bool { return r != None }, (*port).probe)
}

// Solicit sends a unicast request to each of the given machines, on the link that received its
// claim. It is the request of an ordinary neighbor, so the machine's kernel answers, independent of
// its processes. Heard receives the answers. links are the machine's current links.
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

// ReadLinks returns the links on which the machine can answer.
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

// WithLinks calls run with a channel that signals the machine's links: once at the beginning, and
// after each change of links or addresses. It ends when ctx is done, or with an error when the
// subscription for changes fails.
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

// onLinks signals changes of links and addresses, except of the links of pods.
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
