package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/renameio/v2"
	"github.com/jsimonetti/rtnetlink/v2"
	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/kernel/rtnl"
	"github.com/orlop-os/orlop/pkg/kernel/sysctl"
)

// Do performs an operation. It returns nil if the operation was performed before, or if an object
// to remove does not exist any more.
func (k *Kernel) Do(o Op) error {
	o, err := k.found(o)
	if err != nil {
		return fmt.Errorf("%v: cannot do: %w", o, err)
	}
	switch o.Verb {
	case DelLink:
		err = ignoreMissing(k.route.Link.Delete(uint32(o.Index)), unix.ENODEV)
	case AddLink:
		err = k.addLink(o)
	case SetMaster:
		err = k.setMaster(o)
	case SetVirtual:
		err = k.setVirtual(o)
	case SetHardware:
		err = setHardware(o)
	case SetTags:
		err = k.setTags(o)
	case SetSysctl:
		err = os.WriteFile(sysctlPath(o.Name), []byte(o.Value), 0)
		if err == nil && o.Value == sysctl.AcceptRA && strings.HasSuffix(o.Name, "/accept_ra") {
			_ = solicit(o.Index) // the kernel solicits later if the link is not up yet
		}
	case SetLink:
		err = k.setLink(o)
	case AddAddress:
		err = rtnl.SetAddress(k.addr, marked(o))
	case DelAddress:
		err = ignoreMissing(rtnl.DeleteAddress(k.addr, marked(o)), unix.EADDRNOTAVAIL)
	case AddRoute:
		err = k.addRoute(o.Route)
	case DelRoute:
		m := routeMessage(o.Route)
		if o.Advertised {
			m.Protocol = unix.RTPROT_RA
		}
		err = ignoreMissing(k.route.Route.Delete(m), unix.ESRCH)
	case AddRule:
		err = k.addRule(o.Rule)
	case DelRule:
		err = ignoreMissing(k.route.Rule.Delete(ruleMessage(o.Rule)), unix.ENOENT)
	case SetHostname:
		err = unix.Sethostname([]byte(o.Value))
	case WriteFile:
		err = writeFile(k.path(o.Name), o.Value)
	default:
		err = errors.ErrUnsupported
	}
	if err != nil {
		return fmt.Errorf("%v: cannot do: %w", o, o.explain(err))
	}
	return nil
}

// explain adds the cause and the remedy to an error of the kernel that contains only a number.
func (o Op) explain(err error) error {
	if o.Verb == SetLink && o.MTU != 0 && errors.Is(err, unix.ERANGE) { // vlan_dev_change_mtu
		return fmt.Errorf("the link below has a smaller MTU; set a larger mtu there: %w", err)
	}
	return err
}

// ignoreMissing returns nil if err says that the object or its link does not exist, because the
// caller wants to remove the object. It returns other errors unchanged.
func ignoreMissing(err error, missing unix.Errno) error {
	if errors.Is(err, missing) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

func (k *Kernel) setLink(o Op) error {
	m := &rtnetlink.LinkMessage{Index: uint32(o.Index)}
	if o.Up {
		m.Flags, m.Change = unix.IFF_UP, unix.IFF_UP
	}
	if o.Down {
		m.Change = unix.IFF_UP
	}
	if o.MTU != 0 {
		m.Attributes = &rtnetlink.LinkAttributes{MTU: uint32(o.MTU)}
	}
	return k.route.Link.Set(m)
}

// solicit sends a router solicitation on a link (RFC 4861 section 4.1), which requests router
// advertisements. The kernel sends a solicitation only when a link comes up, and the next
// unsolicited router advertisement may come only after half an hour.
func solicit(index int) error {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255); err != nil {
		return err
	}
	routers := netip.MustParseAddr("ff02::2").As16()
	message := []byte{133, 0, 0, 0, 0, 0, 0, 0} // the kernel adds the checksum
	return unix.Sendto(fd, message, 0, &unix.SockaddrInet6{Addr: routers, ZoneId: uint32(index)})
}

// marked returns the address of an operation, with the mark.
func marked(o Op) rtnl.Address {
	a := rtnl.Address{Index: o.Index, Prefix: o.Prefix, Protocol: Protocol}
	if o.Prefix.Addr().Is6() && !o.Detect {
		a.Flags = unix.IFA_F_NODAD // the package comment has the reason
	}
	return a
}

// addRoute adds a route. It never replaces a route, because a route with the same destination and
// metric may belong to another component. It is no error if the same route exists with the mark.
func (k *Kernel) addRoute(r Route) error {
	err := k.route.Route.Add(routeMessage(r))
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	links, err := k.readLinks()
	if err != nil {
		return err
	}
	routes, _, err := k.readRoutes(links)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(routes, r.same) {
		return nil
	}
	return fmt.Errorf("a foreign route to %v with metric %d exists; configure another metric: %w", r.To, r.Metric, unix.EEXIST)
}

// routeTypes are the values of rtm_type for Route.Kind.
var routeTypes = map[string]uint8{"": unix.RTN_UNICAST, "blackhole": unix.RTN_BLACKHOLE, "unreachable": unix.RTN_UNREACHABLE, "prohibit": unix.RTN_PROHIBIT}

func routeMessage(r Route) *rtnetlink.RouteMessage {
	m := &rtnetlink.RouteMessage{
		Family:    unix.AF_INET,
		DstLength: uint8(r.To.Bits()),
		Table:     unix.RT_TABLE_MAIN,
		Protocol:  Protocol,
		Type:      routeTypes[r.Kind],
		Attributes: rtnetlink.RouteAttributes{
			OutIface: uint32(r.Index),
			Priority: r.Metric,
		},
	}
	if r.Table != 0 {
		// the header has only a single byte for the table
		m.Table, m.Attributes.Table = unix.RT_TABLE_UNSPEC, r.Table
	}
	if r.To.Addr().Is6() {
		m.Family = unix.AF_INET6
	}
	if r.To.Bits() > 0 {
		m.Attributes.Dst = net.IP(r.To.Addr().AsSlice())
	}
	if r.Source.IsValid() {
		m.Attributes.Src = net.IP(r.Source.AsSlice())
	}
	for _, h := range r.Hops {
		hop := rtnetlink.NextHop{Gateway: net.IP(h.Via.AsSlice()), Hop: rtnetlink.RTNextHop{Hops: uint8(h.Weight - 1), IfIndex: uint32(h.Index)}}
		if h.OnLink {
			hop.Hop.Flags = unix.RTNH_F_ONLINK
		}
		m.Attributes.Multipath = append(m.Attributes.Multipath, hop)
	}
	switch {
	case r.Via.IsValid():
		m.Attributes.Gateway = net.IP(r.Via.AsSlice())
	case r.To.Addr().Is4() && r.Link != "":
		m.Scope = unix.RT_SCOPE_LINK
	}
	if r.OnLink {
		m.Flags = unix.RTNH_F_ONLINK
	}
	return m
}

func (k *Kernel) path(name string) string {
	switch name {
	case "resolv.conf":
		return k.files.ResolvConf
	case "hosts":
		return k.files.Hosts
	}
	return k.files.Hostname
}

// writeFile replaces a file atomically: a reader sees either the old or the new content. It creates
// the directory of the file if necessary.
func writeFile(path, content string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return renameio.WriteFile(path, []byte(content), 0o644)
}
