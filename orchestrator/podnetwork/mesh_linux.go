package podnetwork

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/orlop-os/orlop/pkg/kernel/kmod"
	"github.com/orlop-os/orlop/pkg/kernel/rtnl"
	"github.com/orlop-os/orlop/pkg/paths"
)

// protocol identifies the routes of this package in the kernel (rtm_protocol).
const protocol netlink.RouteProtocol = rtnl.ProtoPods

// lastResort is the metric of an unreachable route. Any other route to the same network has a lower
// metric and is preferred.
const lastResort = 4096

// vni is the network identifier of the VXLAN.
const vni = 1

// maxRounds bounds the passes over the kernel's state. More than one pass is necessary, because a
// link that is created again loses its routes and neighbor entries, which the next pass restores.
const maxRounds = 3

// kernel reads and changes the objects of the mesh in the kernel. The zero kernel has no WireGuard
// key.
type kernel struct {
	key   wgtypes.Key // the private key
	log   func(string)
	ahead handshakes // if nil, no peer counts as stuck
}

// handshakes contains, for each peer with a last handshake in the future, the time of the handshake
// (at) and the time when it was first seen (since).
type handshakes map[wgtypes.Key]struct {
	at    time.Time
	since time.Time
}

const (
	// clockSkew is how far in the future a handshake must be to prove that the clock of this
	// machine went back.
	clockSkew = 10 * time.Second
	// stuckAfter is the time without a newer handshake after which a peer is stuck. A session of
	// WireGuard ends after three minutes (WireGuard, 6.1, Reject-After-Time). If only the clock of
	// this machine went back, the other end has begun a new handshake within that time, and the
	// peer is not stuck.
	stuckAfter = 4 * time.Minute
)

// The method stuck reports whether a peer is stuck. The parameter at is the time of the last
// handshake with the peer. The peer is stuck if this time is in the future and no newer handshake
// has followed for stuckAfter. Then the clocks of both ends went back, and each end rejects the
// handshakes of the other end. The kernel stores the time of the last handshake until the peer is
// removed.
func (h handshakes) stuck(peer wgtypes.Key, at, now time.Time) bool {
	if h == nil || at.Sub(now) <= clockSkew {
		delete(h, peer)
		return false
	}
	seen := h[peer]
	if !seen.at.Equal(at) {
		seen.at, seen.since = at, now
		h[peer] = seen
	}
	return now.Sub(seen.since) > stuckAfter
}

// apply changes the kernel until it has the wanted objects. It continues after a failure of one
// object, and returns all errors of the last pass.
func (k kernel) apply(want []KernelObject) error {
	var errs []error
	for range maxRounds {
		have, err := k.read()
		if err != nil {
			return err
		}
		gone, set := Diff(have, want)
		if len(gone)+len(set) == 0 {
			return nil
		}
		errs = nil
		for _, p := range gone {
			k.log("remove " + p.String())
			if err := k.remove(p); err != nil {
				errs = append(errs, fmt.Errorf("%s: cannot remove: %w", p.Name(), err))
			}
		}
		for _, p := range set {
			k.log("set " + p.String())
			if err := k.set(p); err != nil {
				errs = append(errs, fmt.Errorf("%s: cannot set: %w", p, err))
			}
		}
		if len(errs) > 0 && len(gone) == 0 {
			break // nothing was removed, so another round would fail in the same way
		}
	}
	return errors.Join(errs...)
}

// read returns the objects of the mesh in the kernel, in the order of NewMesh.
func (k kernel) read() ([]KernelObject, error) {
	var pieces []KernelObject
	index := 0
	end, err := netlink.LinkByName(Tunnel)
	switch {
	case errors.As(err, &netlink.LinkNotFoundError{}):
	case err != nil:
		return nil, fmt.Errorf("link %s: cannot look for: %w", Tunnel, err)
	default:
		index = end.Attrs().Index
		if pieces, err = k.readTunnel(end); err != nil {
			return nil, fmt.Errorf("link %s: cannot read: %w", Tunnel, err)
		}
	}
	routes, err := rtnl.Consistent(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: protocol}, netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil {
		return nil, fmt.Errorf("routes: cannot list: %w", err)
	}
	for _, r := range routes {
		if route, ok := routeOf(r, index); ok {
			pieces = append(pieces, route)
		}
	}
	return pieces, nil
}

// routeOf converts a route of the kernel. tunnel is the index of the tunnel's link, or 0 without a
// tunnel. routeOf returns false for a route of a link that is disappearing.
func routeOf(r netlink.Route, tunnel int) (Route, bool) {
	route := Route{To: prefix(*r.Dst), Via: addr(r.Gw), From: addr(r.Src), Tunnel: tunnel != 0 && r.LinkIndex == tunnel}
	return route, r.Type == unix.RTN_UNREACHABLE || !route.refuses()
}

// removeRoute deletes the routes in the kernel that equal p. Other routes of this package to the
// same network stay.
func (k kernel) removeRoute(p Route, tunnel netlink.Link) error {
	index := 0
	if tunnel != nil {
		index = tunnel.Attrs().Index
	}
	have, err := routesTo(&netlink.Route{Dst: ipnet(p.To), Protocol: protocol})
	if err != nil {
		return err
	}
	return deleteRoutes(slices.DeleteFunc(have, func(r netlink.Route) bool {
		route, ok := routeOf(r, index)
		return !ok || route != p
	}))
}

func (k kernel) readTunnel(end netlink.Link) ([]KernelObject, error) {
	attrs := end.Attrs()
	l := Link{Kind: end.Type(), MTU: attrs.MTU, Up: attrs.Flags&net.FlagUp != 0}
	var inside []KernelObject
	var err error
	switch v := end.(type) {
	case *netlink.Wireguard:
		inside, err = k.readWireGuard(&l)
	case *netlink.Vxlan:
		l.Port, l.From, l.MAC = v.Port, addr(v.SrcAddr), attrs.HardwareAddr.String()
		inside, err = readVXLAN(attrs.Index)
	}
	if err != nil {
		return nil, err
	}
	addresses, err := addressesOn(end)
	if err != nil {
		return nil, err
	}
	pieces := []KernelObject{l}
	for _, a := range addresses {
		if !a.IP.IsLinkLocalUnicast() {
			pieces = append(pieces, Address{addr(a.IP)})
		}
	}
	return append(pieces, inside...), nil
}

func (k kernel) readWireGuard(l *Link) ([]KernelObject, error) {
	control, err := wgctrl.New()
	if err != nil {
		return nil, err
	}
	defer control.Close()
	device, err := control.Device(Tunnel)
	if err != nil {
		return nil, err
	}
	l.Key, l.Port = device.PublicKey, device.ListenPort
	var pieces []KernelObject
	for _, p := range device.Peers {
		peer := Peer{Key: p.PublicKey, Deferred: k.ahead.stuck(p.PublicKey, p.LastHandshakeTime, time.Now())}
		if p.Endpoint != nil {
			at := p.Endpoint.AddrPort()
			peer.At = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
		}
		for _, r := range p.AllowedIPs {
			peer.Ranges = append(peer.Ranges, prefix(r))
		}
		pieces = append(pieces, peer)
	}
	return pieces, nil
}

func readVXLAN(index int) ([]KernelObject, error) {
	var pieces []KernelObject
	for _, family := range []int{unix.AF_BRIDGE, unix.AF_INET, unix.AF_INET6} {
		list, err := rtnl.Consistent(func() ([]netlink.Neigh, error) { return netlink.NeighList(index, family) })
		if err != nil {
			return nil, err
		}
		for _, n := range list {
			ip := addr(n.IP)
			switch {
			case !ip.IsValid() || n.State&netlink.NUD_PERMANENT == 0:
			case family == unix.AF_BRIDGE:
				pieces = append(pieces, FDBEntry{MAC: n.HardwareAddr.String(), At: ip})
			default:
				pieces = append(pieces, NeighborEntry{IP: ip, MAC: n.HardwareAddr.String()})
			}
		}
	}
	return pieces, nil
}

func (k kernel) set(p KernelObject) error {
	switch p := p.(type) {
	case Link:
		return k.setLink(p)
	case Peer:
		return configure(peerOf(p))
	case Route:
		return k.setRoute(p)
	}
	end, err := netlink.LinkByName(Tunnel)
	if err != nil {
		return err
	}
	switch p := p.(type) {
	case Address:
		a := &netlink.Addr{IPNet: ipnet(netip.PrefixFrom(p.IP, p.IP.BitLen()))}
		if p.IP.Is6() {
			// without duplicate address detection, because the bridge has the same address
			a.Flags = unix.IFA_F_NODAD
		}
		return netlink.AddrReplace(end, a)
	case FDBEntry, NeighborEntry:
		n, err := neighOf(p, end.Attrs().Index)
		if err != nil {
			return err
		}
		return netlink.NeighSet(n)
	}
	return fmt.Errorf("%T: unknown object", p)
}

func (k kernel) remove(p KernelObject) error {
	end, err := netlink.LinkByName(Tunnel)
	if err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) {
		return err
	}
	switch p := p.(type) {
	case Link:
		return netlink.LinkDel(end)
	case Peer:
		return configure(wgtypes.PeerConfig{PublicKey: p.Key, Remove: true, UpdateOnly: true})
	case Route:
		return k.removeRoute(p, end)
	case Address:
		return netlink.AddrDel(end, &netlink.Addr{IPNet: ipnet(netip.PrefixFrom(p.IP, p.IP.BitLen()))})
	case FDBEntry, NeighborEntry:
		n, err := neighOf(p, end.Attrs().Index)
		if err != nil {
			return err
		}
		return netlink.NeighDel(n)
	}
	return fmt.Errorf("%T: unknown object", p)
}

// setLink creates the link if it is missing, and loads its kernel module if necessary. It then sets
// all properties that can change.
func (k kernel) setLink(l Link) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = Tunnel, l.MTU
	var made netlink.Link = &netlink.Wireguard{LinkAttrs: attrs}
	if l.Kind == vxlan {
		mac, err := net.ParseMAC(l.MAC)
		if err != nil {
			return err
		}
		attrs.HardwareAddr = mac
		made = &netlink.Vxlan{LinkAttrs: attrs, VxlanId: vni, SrcAddr: l.From.AsSlice(), Port: l.Port}
	}
	end, err := netlink.LinkByName(Tunnel)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		err = netlink.LinkAdd(made)
		if errors.Is(err, unix.EOPNOTSUPP) {
			if err := load(l.Kind); err != nil {
				return err
			}
			err = netlink.LinkAdd(made)
		}
		if err != nil {
			return err
		}
		end, err = netlink.LinkByName(Tunnel)
	}
	if err != nil {
		return err
	}
	if err := netlink.LinkSetMTU(end, l.MTU); err != nil {
		return err
	}
	if l.Kind == wireguard {
		control, err := wgctrl.New()
		if err != nil {
			return err
		}
		defer control.Close()
		if err := control.ConfigureDevice(Tunnel, wgtypes.Config{PrivateKey: &k.key, ListenPort: &l.Port}); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(end)
}

// load loads a kernel module and its dependencies. On this system the kernel does not load modules
// by itself (machined/host). The modules are not loaded at boot, because the only machine of a
// cluster does not need them.
func load(module string) error {
	release, err := kmod.Release()
	if err != nil {
		return err
	}
	index, err := kmod.Read(filepath.Join(paths.Modules, release))
	if err != nil {
		return err
	}
	steps, err := index.Plan(module)
	if err != nil {
		return err
	}
	return kmod.Load(steps)
}

func (k kernel) setRoute(r Route) error {
	route := &netlink.Route{Dst: ipnet(r.To), Protocol: protocol, Src: r.From.AsSlice(), Gw: r.Via.AsSlice()}
	switch {
	case r.refuses():
		route.Type, route.Priority = unix.RTN_UNREACHABLE, lastResort
	case r.Tunnel:
		end, err := netlink.LinkByName(Tunnel)
		if err != nil {
			return err
		}
		route.LinkIndex = end.Attrs().Index
		if r.Via.IsValid() {
			route.SetFlag(netlink.FLAG_ONLINK)
		} else if r.To.Addr().Is4() {
			route.Scope = netlink.SCOPE_LINK
		}
	}
	return putRoute(route)
}

// keepalive is the interval of packets to a peer when there is no other traffic. WireGuard rejects
// a handshake with an earlier time than the last handshake (WireGuard, 5.4.2). So after the clock
// of a node went back, the node cannot begin a handshake until its clock has caught up. Because of
// the keepalive packets, the other node begins the handshakes.
const keepalive = 25 * time.Second

func peerOf(p Peer) wgtypes.PeerConfig {
	every := keepalive
	c := wgtypes.PeerConfig{PublicKey: p.Key, Endpoint: net.UDPAddrFromAddrPort(p.At), ReplaceAllowedIPs: true, PersistentKeepaliveInterval: &every}
	for _, r := range p.Ranges {
		c.AllowedIPs = append(c.AllowedIPs, *ipnet(r))
	}
	return c
}

func configure(p wgtypes.PeerConfig) error {
	control, err := wgctrl.New()
	if err != nil {
		return err
	}
	defer control.Close()
	return control.ConfigureDevice(Tunnel, wgtypes.Config{Peers: []wgtypes.PeerConfig{p}})
}

// neighOf converts an FDB entry or a neighbor entry to a permanent entry of the kernel.
func neighOf(p KernelObject, index int) (*netlink.Neigh, error) {
	n := &netlink.Neigh{LinkIndex: index, State: netlink.NUD_PERMANENT}
	text := ""
	switch p := p.(type) {
	case FDBEntry:
		n.Family, n.Flags, n.IP, text = unix.AF_BRIDGE, netlink.NTF_SELF, p.At.AsSlice(), p.MAC
	case NeighborEntry:
		n.Family, n.IP, text = unix.AF_INET, p.IP.AsSlice(), p.MAC
		if p.IP.Is6() {
			n.Family = unix.AF_INET6
		}
	}
	var err error
	n.HardwareAddr, err = net.ParseMAC(text)
	return n, err
}

// underlayMTU returns the MTU in bytes of the link that has the address.
func underlayMTU(address netip.Addr) (int, error) {
	links, err := rtnl.Consistent(netlink.LinkList)
	if err != nil {
		return 0, fmt.Errorf("links: cannot list: %w", err)
	}
	addresses, err := addressesOn(nil)
	if err != nil {
		return 0, fmt.Errorf("addresses: cannot list: %w", err)
	}
	for _, a := range addresses {
		for _, l := range links {
			if addr(a.IP) == address && l.Attrs().Index == a.LinkIndex {
				return l.Attrs().MTU, nil
			}
		}
	}
	return 0, fmt.Errorf("no link has the node's address %s", address)
}

// privateKey reads the node's WireGuard key, or creates it. The key survives a reboot, so packets
// of other nodes reach this node before it has contacted the API server. A damaged key and a key of
// another node are replaced by a new key. A machine can have a key of another node if it had
// another name before. It must not use that key, because the Node with the earlier name may still
// exist.
func privateKey(dir, node string) (wgtypes.Key, error) {
	path := filepath.Join(dir, "wireguard.key")
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return wgtypes.Key{}, fmt.Errorf("key of the pod network: cannot read: %w", err)
	}
	kept, of, _ := strings.Cut(string(text), " ")
	if key, err := wgtypes.ParseKey(kept); err == nil && of == node {
		return key, nil
	}
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		return wgtypes.Key{}, fmt.Errorf("key of the pod network: cannot create: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return wgtypes.Key{}, fmt.Errorf("key of the pod network: cannot create directory: %w", err)
	}
	if err := renameio.WriteFile(path, []byte(key.String()+" "+node), 0o600); err != nil {
		return wgtypes.Key{}, fmt.Errorf("key of the pod network: cannot write: %w", err)
	}
	return key, nil
}

func addr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

func prefix(n net.IPNet) netip.Prefix {
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(addr(n.IP), bits)
}

func ipnet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
