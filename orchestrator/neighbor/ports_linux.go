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

	"github.com/orlop-os/orlop/pkg/rtnl"
)

// where is what a port is for: a link as it is, and a family.
type where struct {
	index int
	MAC   MAC
	six   bool
}

// Role is what a machine does about an address.
type Role int

// The roles.
const (
	None   Role = iota
	Listen      // hear who speaks for it
	// announce it, and hear who else speaks for it: it is the machine's own, and the kernel answers
	Present
	Answer // speak for it, and hear who else does
)

// Mode is a role on some links.
type Mode struct {
	Role  Role
	Links []Link
}

// Sockets are the machine's sockets on its links. They are for one goroutine; make them with
// NewSockets.
type Sockets struct {
	// Heard are the claims of other machines. What is not taken is dropped: it is said again.
	Heard chan SeenAddress
	// Failed are ports that serve no more; each is to be handed to Drop.
	Failed chan Failure
	open   map[where]*port
}

// Failure is a port that serves no more, and why.
type Failure struct {
	Err  error
	port *port
}

// NewSockets opens none yet.
func NewSockets() *Sockets {
	return &Sockets{open: map[where]*port{}, Heard: make(chan SeenAddress, 64), Failed: make(chan Failure, 16)}
}

// Apply does the duty of each address, and no other. What cannot be done is tried again with the
// next call.
func (ps *Sockets) Apply(duties map[netip.Addr]Mode) error {
	want, links := map[where]map[netip.Addr]Role{}, map[where]Link{}
	for a, duty := range duties {
		for _, l := range duty.Links {
			at := where{l.Index, l.MAC, a.Is6()}
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

// Drop closes a port that failed, so that Apply opens another one.
func (ps *Sockets) Drop(f Failure) {
	for at, open := range ps.open {
		if open == f.port {
			ps.close(at)
		}
	}
}

func (ps *Sockets) close(at where) {
	ps.open[at].close()
	delete(ps.open, at)
}

// Close ends all answering and listening.
func (ps *Sockets) Close() {
	for at := range maps.Clone(ps.open) {
		ps.close(at)
	}
}

// Announce tells everybody who has these addresses, on the links where the machine has them or
// answers for them.
func (ps *Sockets) Announce(addresses []netip.Addr) error {
	return ps.say(addresses, func(r Role) bool { return r == Present || r == Answer }, (*port).announce)
}

// Probe asks who has these addresses without claiming them, on the links where they concern the
// machine. Who answers is in Heard.
func (ps *Sockets) Probe(addresses []netip.Addr) error {
	return ps.say(addresses, func(r Role) bool { return r != None }, (*port).probe)
}

// Solicit asks machines that were heard whether they are still there, each alone, on the link where it
// was heard. It is the question of an ordinary neighbour, so that the machine's kernel answers,
// whatever its programs do. Who answers is in Heard. links are the machine's present ones.
func (ps *Sockets) Solicit(whom []SeenAddress, links []Link) error {
	var errs []error
	for _, c := range whom {
		for _, p := range ps.open {
			if from := source(c, links); p.link.Name == c.Link && p.six == c.Address.Is6() && from.IsValid() {
				errs = append(errs, p.ask(from, c))
			}
		}
	}
	return errors.Join(errs...)
}

func (ps *Sockets) say(addresses []netip.Addr, where func(Role) bool, how func(*port, netip.Addr) error) error {
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

// WithLinks runs something that is told of the machine's links: once at the beginning, and whenever
// links or addresses have changed. It ends when ctx does, or when there is no way to know of
// changes any more, which is an error then.
func WithLinks(ctx context.Context, run func(ctx context.Context, links <-chan struct{}) error) error {
	watcher, err := rtnl.Subscribe()
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	links := make(chan struct{}, 1)
	links <- struct{}{}
	go func() { stop(watcher.Run(ctx, onLinks(links))) }()
	if err := run(ctx, links); err != nil {
		return err
	}
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// onLinks tells of changes of links and addresses, those of pods' links left out.
func onLinks(changed chan<- struct{}) func(rtnl.Change) {
	return func(c rtnl.Change) {
		if c.Kind == rtnl.RouteChanged || c.LinkKind == "veth" {
			return
		}
		select {
		case changed <- struct{}{}:
		default:
		}
	}
}
