package vm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/insomniacslk/dhcp/rfc1035label"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
)

// IPv6Mode is the method by which the router of a network gives IPv6 settings to machines.
type IPv6Mode string

const (
	// IPv6None starts no IPv6 router. Machines have link-local addresses only.
	IPv6None IPv6Mode = ""
	// IPv6Advertised gives addresses, resolvers (RDNSS) and search domains (DNSSL) by router
	// advertisements.
	IPv6Advertised IPv6Mode = "advertised"
	// IPv6Stateless gives addresses by router advertisements, which have the flag O, and settings
	// by DHCPv6.
	IPv6Stateless IPv6Mode = "stateless"
	// IPv6Stateful gives addresses and settings by DHCPv6. The router advertisements have the flags
	// M and O.
	IPv6Stateful IPv6Mode = "stateful"
)

// IPv6Spec describes the IPv6 router of a network. The zero value starts no router.
type IPv6Spec struct {
	Mode IPv6Mode `json:"mode,omitempty"`
	// Prefix is the IPv6 network, a /64; default fd00:77::/64. The gateway has its first address.
	// In all modes, the address of a machine ends with the EUI-64 of its hardware address (RFC
	// 4291, appendix A).
	Prefix netip.Prefix `json:"prefix,omitzero"`
	// Only removes IPv4: the DHCPv4 server is off, and DNS names have IPv6 addresses only.
	Only bool `json:"only,omitempty"`
	// Delegated is the range from which DHCPv6 delegates a /60 to each machine. It is a /48 to /56;
	// invalid: DHCPv6 delegates no prefixes.
	Delegated netip.Prefix `json:"delegated,omitzero"`
}

// withDefaults returns s with its defaults. It fails if s is invalid.
func (s IPv6Spec) withDefaults() (IPv6Spec, error) {
	if !s.Prefix.IsValid() {
		s.Prefix = netip.MustParsePrefix("fd00:77::/64")
	}
	switch s.Mode {
	case IPv6None:
		if s.Only {
			return s, errors.New("network: a network with IPv6 only needs a mode")
		}
	case IPv6Advertised, IPv6Stateless, IPv6Stateful:
	default:
		return s, fmt.Errorf("network: the IPv6 mode %q is none of %q, %q and %q", s.Mode, IPv6Advertised, IPv6Stateless, IPv6Stateful)
	}
	if s.Prefix = s.Prefix.Masked(); !s.Prefix.Addr().Is6() || s.Prefix.Bits() != 64 {
		return s, fmt.Errorf("network: %s is not an IPv6 network of /64", s.Prefix)
	}
	if d := s.Delegated; d.IsValid() && (!d.Addr().Is6() || d.Bits() < 48 || d.Bits() > 56) {
		return s, fmt.Errorf("network: %s is not an IPv6 network of /48 to /56", d)
	}
	return s, nil
}

// The method on reports whether the network has an IPv6 router.
func (s IPv6Spec) on() bool { return s.Mode != IPv6None }

// addrOf returns the IPv6 address of the machine with a hardware address.
func (s IPv6Spec) addrOf(mac macAddr) netip.Addr {
	b := s.Prefix.Addr().As16()
	copy(b[8:], eui64(mac))
	return netip.AddrFrom16(b)
}

// gateway returns the address of the gateway.
func (s IPv6Spec) gateway() netip.Addr { return s.Prefix.Addr().Next() }

// delegatedTo returns the delegated prefix of a machine. The prefix depends on the last byte of the
// machine's hardware address.
func (s IPv6Spec) delegatedTo(mac macAddr) netip.Prefix {
	b := s.Delegated.Masked().Addr().As16()
	b[6], b[7] = b[6]|mac[5]>>4, mac[5]<<4
	return netip.PrefixFrom(netip.AddrFrom16(b), 60)
}

// eui64 returns the interface identifier of a hardware address (RFC 4291, appendix A).
func eui64(mac macAddr) []byte {
	return []byte{mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]}
}

// macOfEUI64 returns the hardware address from which an IPv6 address was derived. It returns false
// if the IPv6 address contains no hardware address.
func macOfEUI64(a netip.Addr) (mac macAddr, ok bool) {
	b := a.As16()
	if b[11] != 0xff || b[12] != 0xfe {
		return mac, false
	}
	return macAddr{b[8] ^ 2, b[9], b[10], b[13], b[14], b[15]}, true
}

// names returns the addresses that DNS has for a machine or host with these IPv4 and IPv6
// addresses.
func (s IPv6Spec) names(four, six netip.Addr) []netip.Addr {
	switch {
	case !s.on():
		return []netip.Addr{four}
	case s.Only:
		return []netip.Addr{six}
	}
	return []netip.Addr{four, six}
}

// SixOf returns the IPv6 address of a machine or host; invalid if the network has no IPv6 router or
// does not know the name.
func (n *Network) SixOf(name string) netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	for mac, l := range n.leases {
		if l.name == name && n.spec.IPv6.on() {
			return n.spec.IPv6.addrOf(mac)
		}
	}
	return netip.Addr{}
}

// Six returns the IPv6 network; invalid without an IPv6 router.
func (n *Network) Six() netip.Prefix {
	if !n.spec.IPv6.on() {
		return netip.Prefix{}
	}
	return n.spec.IPv6.Prefix
}

// setIPv6 gives a host a link-local address and addr, and a default route if gateway is valid.
func (h *Host) setIPv6(addr netip.Prefix, gateway netip.Addr) error {
	factory := func(a netip.Prefix) tcpip.ProtocolAddress {
		return tcpip.ProtocolAddress{Protocol: ipv6.ProtocolNumber, AddressWithPrefix: tcpip.AddressWithPrefix{
			Address: tcpip.AddrFrom16(a.Addr().As16()), PrefixLen: a.Bits()}}
	}
	local := header.LinkLocalAddr(tcpip.LinkAddress(h.mac[:]))
	routes := h.stack.GetRouteTable()
	for _, p := range []tcpip.ProtocolAddress{factory(netip.PrefixFrom(netip.AddrFrom16(local.As16()), 64)), factory(addr)} {
		if err := h.stack.AddProtocolAddress(nic, p, stack.AddressProperties{}); err != nil {
			return fmt.Errorf("host %s: cannot add the address %s: %s", h.name, p.AddressWithPrefix, err)
		}
		routes = append(routes, tcpip.Route{Destination: p.AddressWithPrefix.Subnet(), NIC: nic})
	}
	if gateway.IsValid() {
		routes = append(routes, tcpip.Route{Destination: header.IPv6EmptySubnet, Gateway: tcpip.AddrFrom16(gateway.As16()), NIC: nic})
	}
	h.stack.SetRouteTable(routes)
	h.six = addr.Addr()
	return nil
}

// protocols6 returns the additional protocols of a host with IPv6. The addresses of hosts are
// fixed, so the hosts solicit no routers and do not test their addresses for duplicates.
func protocols6() ([]stack.NetworkProtocolFactory, []stack.TransportProtocolFactory) {
	return []stack.NetworkProtocolFactory{ipv6.NewProtocol}, []stack.TransportProtocolFactory{icmp.NewProtocol6}
}

// routerLifetime is in the router advertisements, and advertiseInterval is the interval between two
// of them. Both are in the time of the network (Clock).
const (
	routerLifetime    = 30 * time.Minute
	advertiseInterval = time.Minute
)

// router is the IPv6 router of a network. It is a part of the gateway.
type router struct{ n *Network }

// start sends router advertisements at intervals, and as answers to solicitations. The returned
// function ends the advertisements.
func (r router) start() (func(), error) {
	n := r.n
	frame, err := r.advertisement()
	if err != nil {
		return nil, err
	}
	return repeat(n.clock.Outside(advertiseInterval), n.gateway.solicited, func() {
		f := newFrame(len(frame))
		copy(f.eth(), frame)
		n.gateway.port.receive(f)
	}), nil
}

// advertisement returns the Ethernet frame of the router advertisement.
func (r router) advertisement() ([]byte, error) {
	n := r.n
	six, h := n.spec.IPv6, n.gateway
	local := header.LinkLocalAddr(tcpip.LinkAddress(h.mac[:])).As16()
	eth := &layers.Ethernet{SrcMAC: h.mac[:], DstMAC: net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, EthernetType: layers.EthernetTypeIPv6}
	ip := &layers.IPv6{Version: 6, NextHeader: layers.IPProtocolICMPv6, HopLimit: 255, SrcIP: local[:], DstIP: net.IPv6linklocalallnodes}
	message := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeRouterAdvertisement, 0)}
	if err := message.SetNetworkLayerForChecksum(ip); err != nil {
		return nil, err
	}
	ra := &layers.ICMPv6RouterAdvertisement{HopLimit: 64}
	if !n.spec.NoRouter {
		ra.RouterLifetime = uint16(routerLifetime / time.Second)
	}
	prefix := append([]byte{64, 0xc0}, make([]byte, 12)...) // length 64, flags L and A
	switch six.Mode {
	case IPv6Stateless:
		ra.Flags = 0x40 // O
	case IPv6Stateful:
		ra.Flags, prefix[1] = 0xc0, 0x80 // M and O; L only
	}
	binary.BigEndian.PutUint32(prefix[2:], 86400)
	binary.BigEndian.PutUint32(prefix[6:], 86400)
	ra.Options = append(ra.Options, layers.ICMPv6Option{Type: layers.ICMPv6OptPrefixInfo, Data: append(prefix, six.Prefix.Addr().AsSlice()...)},
		layers.ICMPv6Option{Type: layers.ICMPv6OptSourceAddress, Data: h.mac[:]})
	if six.Mode == IPv6Advertised {
		lifetime := binary.BigEndian.AppendUint32([]byte{0, 0}, uint32(routerLifetime/time.Second))
		search := append(lifetime[:6:6], (&rfc1035label.Labels{Labels: []string{n.spec.Domain}}).ToBytes()...)
		for len(search)%8 != 6 {
			search = append(search, 0)
		}
		const servers, domains = 25, 31 // RDNSS and DNSSL
		ra.Options = append(ra.Options, layers.ICMPv6Option{Type: servers, Data: append(lifetime[:6:6], six.gateway().AsSlice()...)},
			layers.ICMPv6Option{Type: domains, Data: search})
	}
	b := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, eth, ip, message, ra)
	return b.Bytes(), err
}

// isSolicitation reports whether a frame contains a router solicitation.
func isSolicitation(eth []byte) bool {
	if len(eth) < ethHeader+header.IPv6MinimumSize+1 || header.Ethernet(eth).Type() != header.IPv6ProtocolNumber {
		return false
	}
	ip := header.IPv6(eth[ethHeader:])
	return ip.TransportProtocol() == header.ICMPv6ProtocolNumber && header.ICMPv6Type(ip[header.IPv6MinimumSize]) == header.ICMPv6RouterSolicit
}
