package announcer

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
)

// where is what a port is for: a link as it is, and a family.
type where struct {
	index int
	mac   mac
	six   bool
}

// ports are the node's open ports. They are for one goroutine.
type ports struct {
	open   map[where]*port
	heard  chan claimed // what is not taken is dropped: it is said again
	failed chan failure
}

// failure is a port that serves no more, and why.
type failure struct {
	port *port
	err  error
}

func newPorts() *ports {
	return &ports{open: map[where]*port{}, heard: make(chan claimed, 64), failed: make(chan failure, 16)}
}

// apply answers for each address on its links, and nowhere else. What cannot be done is tried again with the next call.
func (ps *ports) apply(placed map[netip.Addr][]Link) error {
	want, links := map[where][]netip.Addr{}, map[where]Link{}
	for a, on := range placed {
		for _, l := range on {
			at := where{l.Index, l.MAC, a.Is6()}
			want[at], links[at] = append(want[at], a), l
		}
	}
	for at := range ps.open {
		if _, wanted := want[at]; !wanted {
			ps.close(at)
		}
	}
	var errs []error
	for at, addresses := range want {
		if ps.open[at] == nil {
			p, err := openPort(links[at], at.six)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			ps.open[at] = p
			go ps.serve(p)
		}
		errs = append(errs, ps.open[at].set(addresses))
	}
	return errors.Join(errs...)
}

func (ps *ports) serve(p *port) {
	err := p.serve(func(c claimed) {
		select {
		case ps.heard <- c:
		default:
		}
	})
	if err != nil {
		ps.failed <- failure{p, err}
	}
}

// drop closes a port that failed, so that apply opens another one.
func (ps *ports) drop(p *port) {
	for at, open := range ps.open {
		if open == p {
			ps.close(at)
		}
	}
}

func (ps *ports) close(at where) {
	ps.open[at].close()
	delete(ps.open, at)
}

func (ps *ports) closeAll() {
	for at := range maps.Clone(ps.open) {
		ps.close(at)
	}
}

// say announces or probes addresses wherever the node answers for them.
func (ps *ports) say(addresses []netip.Addr, how func(*port, netip.Addr) error) error {
	var errs []error
	for _, p := range ps.open {
		for _, a := range addresses {
			if (*p.ours.Load())[a] {
				errs = append(errs, how(p, a))
			}
		}
	}
	return errors.Join(errs...)
}

// readLinks are the links on which the machine can answer.
func readLinks() ([]Link, error) {
	all, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("links: cannot list: %w", err)
	}
	addresses, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("addresses: cannot list: %w", err)
	}
	var links []Link
	for _, one := range all {
		attrs := one.Attrs()
		if attrs.EncapType != "ether" || len(attrs.HardwareAddr) != len(mac{}) || attrs.Flags&net.FlagUp == 0 || attrs.Flags&net.FlagRunning == 0 {
			continue
		}
		l := Link{Index: attrs.Index, Name: attrs.Name, MAC: mac(attrs.HardwareAddr)}
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
