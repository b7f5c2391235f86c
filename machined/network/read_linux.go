package network

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/jsimonetti/rtnetlink/v2"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/kernel/rtnl"
	"github.com/orlop-os/orlop/pkg/paths"
)

// FilePaths are the paths of the files of name resolution.
type FilePaths struct{ ResolvConf, Hosts, Hostname string }

// SystemFiles are the files of the running system.
var SystemFiles = FilePaths{ResolvConf: paths.ResolvConf, Hosts: paths.Hosts, Hostname: paths.Hostname}

// Kernel reads and changes the network in the network namespace of the process. Only one goroutine
// may use it at a time.
type Kernel struct {
	files FilePaths
	route *rtnetlink.Conn // links and routes
	addr  *netlink.Conn   // addresses and other messages that the library does not support
	ioctl int             // socket for driver requests
	// loadModules loads kernel modules with their dependencies; nil: the kernel has all modules.
	loadModules func(names ...string) error
	memory      *memory
}

// Open opens the sockets to the kernel.
func Open(files FilePaths) (*Kernel, error) {
	route, err := rtnetlink.Dial(nil)
	if err != nil {
		return nil, fmt.Errorf("network: cannot open rtnetlink: %w", err)
	}
	addr, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		route.Close()
		return nil, fmt.Errorf("network: cannot open rtnetlink: %w", err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		route.Close()
		addr.Close()
		return nil, fmt.Errorf("network: cannot open a socket: %w", err)
	}
	// With this option the kernel adds a text to its errors. The option is not essential, so an
	// error is ignored.
	_ = route.SetOption(netlink.ExtendedAcknowledge, true)
	_ = addr.SetOption(netlink.ExtendedAcknowledge, true)
	return &Kernel{files: files, route: route, addr: addr, ioctl: fd, memory: &memory{}}, nil
}

// Close closes the sockets.
func (k *Kernel) Close() error {
	return errors.Join(k.route.Close(), k.addr.Close(), unix.Close(k.ioctl))
}

// Read reads the actual state of the kernel and of the files. It reads sysctls and hardware
// settings only for the links that c manages.
func (k *Kernel) Read(c Config) (Have, error) {
	links, err := k.readLinks()
	if err != nil {
		return Have{}, err
	}
	have := Have{Links: links, Unfit: map[Address]string{}}
	for i, l := range links {
		if l.Physical() { // planLinks needs these values for matches
			links[i].Driver, links[i].Path, links[i].Function = k.readDriver(l.Name), devicePath(l.Name), isFunction(l.Name)
		}
	}
	for _, w := range planLinks(c, Facts{Links: links, Hardware: k.memory.formerHardware()}) {
		i := slices.IndexFunc(links, func(l Link) bool { return l.Index == w.Index })
		if i < 0 {
			continue // the link does not exist yet
		}
		links[i].Sysctls = readSysctls(w)
		if len(w.Hardware) > 0 {
			links[i].Settings = readSettings(w.Name, sortedKeys(w.Hardware))
		}
	}
	for i, l := range links {
		if l.Kind == kindWireGuard && l.Own {
			if links[i].Virtual.WireGuard, err = k.readWireGuard(l.Name); err != nil {
				return Have{}, err
			}
		}
	}
	if err := k.readTags(links); err != nil {
		return Have{}, err
	}
	if err := k.readAddresses(&have); err != nil {
		return Have{}, err
	}
	if have.Routes, have.Advertised, err = k.readRoutes(links); err != nil {
		return Have{}, err
	}
	if have.Rules, err = k.readRules(); err != nil {
		return Have{}, err
	}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return Have{}, fmt.Errorf("hostname: cannot read: %w", err)
	}
	have.Hostname = unix.ByteSliceToString(uts.Nodename[:])
	have.Files, err = readFiles(k.files)
	return have, err
}

// dumpLinks returns the messages of all links, and the router flags by index of the link. It
// decodes IFLA_LINK itself, because the library can lose this attribute. At IFLA_VLAN_FLAGS the
// library stops without an error, and drops all attributes behind IFLA_LINKINFO
// (findings/rtnetlink-vlan-flags.sh).
func (k *Kernel) dumpLinks() ([]rtnetlink.LinkMessage, map[uint32]RouterFlags, error) {
	answers, err := k.addr.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.RTM_GETLINK, Flags: netlink.Request | netlink.Dump},
		Data:   make([]byte, unix.SizeofIfInfomsg),
	})
	if err != nil {
		return nil, nil, err
	}
	flags := map[uint32]RouterFlags{}
	msgs := make([]rtnetlink.LinkMessage, len(answers))
	for i, a := range answers {
		if err := msgs[i].UnmarshalBinary(a.Data); err != nil {
			return nil, nil, err
		}
		if msgs[i].Attributes == nil {
			continue
		}
		ad, err := netlink.NewAttributeDecoder(a.Data[unix.SizeofIfInfomsg:])
		if err != nil {
			return nil, nil, err
		}
		for ad.Next() {
			switch ad.Type() {
			case unix.IFLA_LINK:
				// the library calls the field of IFLA_LINK Type
				msgs[i].Attributes.Type = ad.Uint32()
			case unix.IFLA_AF_SPEC:
				ad.Nested(func(nad *netlink.AttributeDecoder) error {
					flags[msgs[i].Index] = readRouterFlags(nad)
					return nil
				})
			}
		}
		if err := ad.Err(); err != nil {
			return nil, nil, err
		}
	}
	return msgs, flags, nil
}

// Bits of IFLA_INET6_FLAGS: IF_RA_RCVD, IF_RA_MANAGED and IF_RA_OTHERCONF (include/net/if_inet6.h).
const (
	raReceived = 0x20
	raManaged  = 0x40
	raOther    = 0x80
)

// readRouterFlags returns the flags of the last router advertisement from IFLA_AF_SPEC. Before the
// first router advertisement, no flag is set.
func readRouterFlags(families *netlink.AttributeDecoder) (out RouterFlags) {
	for families.Next() {
		if families.Type() != unix.AF_INET6 {
			continue
		}
		families.Nested(func(ad *netlink.AttributeDecoder) error {
			for ad.Next() {
				if ad.Type() == unix.IFLA_INET6_FLAGS {
					flags := ad.Uint32()
					seen := flags&raReceived != 0
					out = RouterFlags{Managed: seen && flags&raManaged != 0, Other: seen && flags&raOther != 0}
				}
			}
			return nil
		})
	}
	return out
}

func (k *Kernel) readLinks() ([]Link, error) {
	msgs, flags, err := k.dumpLinks()
	if err != nil {
		return nil, fmt.Errorf("links: cannot list: %w", err)
	}
	links, names := make([]Link, 0, len(msgs)), map[int]string{}
	for _, m := range msgs {
		if m.Attributes != nil {
			names[int(m.Index)] = m.Attributes.Name
		}
	}
	for _, m := range msgs {
		if m.Attributes == nil || m.Attributes.Name == "" {
			continue
		}
		l := Link{
			Name:     m.Attributes.Name,
			Index:    int(m.Index),
			MAC:      m.Attributes.Address.String(),
			MTU:      int(m.Attributes.MTU),
			Up:       m.Flags&unix.IFF_UP != 0,
			Loopback: m.Flags&unix.IFF_LOOPBACK != 0,
			Ethernet: m.Type == unix.ARPHRD_ETHER,
			// IFF_RUNNING, because IFLA_CARRIER is 1 shortly before the queue of the link starts,
			// and packets that are sent in between are lost.
			Carrier:    m.Flags&unix.IFF_RUNNING != 0,
			Device:     Device{Permanent: m.Attributes.PermAddress.String()},
			Own:        value(m.Attributes.NetDevGroup) == Protocol,
			Virtual:    readVirtual(m, names),
			Membership: Membership{Master: names[int(value(m.Attributes.Master))]},
			Router:     flags[m.Index],
		}
		if m.Attributes.Info != nil {
			l.Kind = m.Attributes.Info.Kind
		}
		links = append(links, l)
	}
	return links, nil
}

func (k *Kernel) readDriver(link string) string {
	info, err := unix.IoctlGetEthtoolDrvinfo(k.ioctl, link)
	if err != nil {
		return "" // not every driver reports its name
	}
	return unix.ByteSliceToString(info.Driver[:])
}

// readSysctls returns the present values of the sysctls of a link. It omits sysctls that do not
// exist.
func readSysctls(w WantLink) map[string]string {
	out := make(map[string]string)
	for key := range sysctls(w) {
		if b, err := os.ReadFile(sysctlPath(key)); err == nil {
			out[key] = strings.TrimSpace(string(b))
		}
	}
	return out
}

func sysctlPath(key string) string { return filepath.Join("/proc/sys/net", key) }

func (k *Kernel) readAddresses(have *Have) error {
	all, err := rtnl.Addresses(k.addr)
	if err != nil {
		return err
	}
	names := linkNames(have.Links)
	for _, a := range all {
		name, known := names[a.Index]
		if !known {
			continue
		}
		if a.Protocol == Protocol {
			own := Address{Link: name, Index: a.Index, Prefix: a.Prefix}
			have.Addresses = append(have.Addresses, own)
			if unfit := addressProblem(a); unfit != "" {
				have.Unfit[own] = unfit
			}
		} else {
			have.Foreign = append(have.Foreign, foreign(name, a))
		}
	}
	return nil
}

// foreign returns the description of an address without the mark of this package (Protocol).
func foreign(link string, a rtnl.Address) ForeignAddress {
	f := ForeignAddress{Address: Address{Link: link, Index: a.Index, Prefix: a.Prefix}, Origin: "other", Unfit: addressProblem(a)}
	switch {
	case a.Protocol == rtnl.ProtoKernelLoopback, a.Protocol == rtnl.ProtoKernelLL:
		f.Origin = "kernel"
	// The kernel also creates temporary addresses from router advertisements. It may leave their
	// IFA_PROTO empty.
	case a.Protocol == rtnl.ProtoKernelRA, a.Protocol == rtnl.ProtoUnspecified && temporary(a):
		f.Origin, f.Advertised = "kernel", true
	}
	return f
}

// temporary reports whether an address is a temporary address of the IPv6 privacy extensions. For
// an IPv4 address, the same bit means IFA_F_SECONDARY.
func temporary(a rtnl.Address) bool {
	return a.Prefix.Addr().Is6() && a.Flags&unix.IFA_F_TEMPORARY != 0 && a.Flags&unix.IFA_F_PERMANENT == 0
}

// addressProblem returns the value of AddressState.Unfit for an address; "" for a usable address.
func addressProblem(a rtnl.Address) string {
	switch {
	case a.Flags&unix.IFA_F_DADFAILED != 0:
		return "duplicate"
	case a.Flags&unix.IFA_F_TENTATIVE != 0:
		return "tentative"
	case a.Flags&unix.IFA_F_DEPRECATED != 0:
		return "deprecated"
	case temporary(a):
		return "temporary"
	}
	return ""
}

// readRoutes returns own, the routes with the mark of this package, and advertised, the routes from
// router advertisements. It reads all tables except the local table.
func (k *Kernel) readRoutes(links []Link) (own, advertised []Route, err error) {
	all, err := dumpRoutes(k.route)
	if err != nil {
		return nil, nil, err
	}
	names := linkNames(links)
	for _, r := range all {
		table := tableNumber(r)
		if table == unix.RT_TABLE_LOCAL || r.Flags&unix.RTM_F_CLONED != 0 {
			continue
		}
		switch {
		case r.Protocol == Protocol:
			own = append(own, readRoute(r, names))
		case r.Protocol == unix.RTPROT_RA && r.Type == unix.RTN_UNICAST:
			advertised = append(advertised, readRoute(r, names))
		}
	}
	return own, advertised, nil
}

// tableNumber returns the table of a route: the attribute if it is set, or else the field of the
// header, which has only a single byte.
func tableNumber(r *rtnetlink.RouteMessage) uint32 {
	if r.Attributes.Table != 0 {
		return r.Attributes.Table
	}
	return uint32(r.Table)
}

func readRoute(r *rtnetlink.RouteMessage, names map[int]string) Route {
	index := int(r.Attributes.OutIface)
	route := Route{
		Link: names[index], Index: index,
		To:     destination(r),
		Via:    toAddr(r.Attributes.Gateway),
		Metric: r.Attributes.Priority,
		OnLink: r.Flags&unix.RTNH_F_ONLINK != 0,
		Table:  tableNumber(r),
		Source: toAddr(r.Attributes.Src),
		Kind:   nameOf(routeTypes, r.Type),
	}
	if route.Table == unix.RT_TABLE_MAIN {
		route.Table = 0
	}
	if route.Kind != "" {
		// the kernel gives the loopback link to an IPv6 route of this kind
		route.Link, route.Index = "", 0
	}
	for _, h := range r.Attributes.Multipath {
		hop := Hop{Index: int(h.Hop.IfIndex), Via: toAddr(h.Gateway), Weight: int(h.Hop.Hops) + 1, OnLink: h.Hop.Flags&unix.RTNH_F_ONLINK != 0}
		hop.Link = names[hop.Index]
		route.Hops = append(route.Hops, hop)
	}
	sortHops(route.Hops)
	return route
}

// dumpRoutes returns the routes of all tables, IPv4 before IPv6.
func dumpRoutes(conn *rtnetlink.Conn) ([]*rtnetlink.RouteMessage, error) {
	var out []*rtnetlink.RouteMessage
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		msgs, err := conn.Execute(&rtnetlink.RouteMessage{Family: family}, unix.RTM_GETROUTE, netlink.Request|netlink.Dump)
		if err != nil {
			return nil, fmt.Errorf("routes: cannot list: %w", err)
		}
		for _, m := range msgs {
			if r, ok := m.(*rtnetlink.RouteMessage); ok && r.Family == family {
				out = append(out, r)
			}
		}
	}
	return out, nil
}

func destination(r *rtnetlink.RouteMessage) netip.Prefix {
	ip := toAddr(r.Attributes.Dst)
	switch {
	case ip.IsValid():
	case r.Family == unix.AF_INET:
		ip = netip.IPv4Unspecified()
	default:
		ip = netip.IPv6Unspecified()
	}
	return netip.PrefixFrom(ip, int(r.DstLength))
}

func toAddr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a
}

func linkNames(links []Link) map[int]string {
	names := make(map[int]string, len(links))
	for _, l := range links {
		names[l.Index] = l.Name
	}
	return names
}

// readFiles returns the contents of the files. The content of a missing file is empty.
func readFiles(p FilePaths) (Files, error) {
	var f Files
	for path, to := range map[string]*string{p.ResolvConf: &f.ResolvConf, p.Hosts: &f.Hosts, p.Hostname: &f.Hostname} {
		b, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return Files{}, fmt.Errorf("file %s: cannot read: %w", path, err)
		}
		*to = string(b)
	}
	return f, nil
}
