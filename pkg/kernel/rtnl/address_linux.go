package rtnl

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// ifaProto is IFA_PROTO of include/uapi/linux/if_addr.h, which golang.org/x/sys does not define.
const ifaProto = 11

// The values of Address.Protocol that the kernel itself sets (IFAPROT_*, if_addr.h).
const (
	ProtoUnspecified    = 0
	ProtoKernelLoopback = 1
	ProtoKernelRA       = 2
	ProtoKernelLL       = 3
)

// Address is an IP address of a link.
type Address struct {
	Index    int          // of the link
	Prefix   netip.Prefix // the address with its prefix length
	Protocol uint8        // origin, IFA_PROTO; 0 if unknown
	Flags    uint32       // IFA_F_*
}

// Addresses returns all IPv4 and IPv6 addresses of the network namespace.
func Addresses(c *netlink.Conn) ([]Address, error) {
	msgs, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.RTM_GETADDR, Flags: netlink.Request | netlink.Dump},
		Data:   make([]byte, unix.SizeofIfAddrmsg),
	})
	if err != nil {
		return nil, fmt.Errorf("addresses: cannot list: %w", err)
	}
	out := make([]Address, 0, len(msgs))
	for _, m := range msgs {
		if m.Header.Type != unix.RTM_NEWADDR {
			continue
		}
		a, err := parseAddress(m.Data)
		if err != nil {
			return nil, fmt.Errorf("addresses: cannot read the kernel's answer: %w", err)
		}
		if a.Prefix.IsValid() {
			out = append(out, a)
		}
	}
	return out, nil
}

// SetAddress adds an address, or sets the protocol and flags of an existing address. The address
// has an unlimited lifetime.
func SetAddress(c *netlink.Conn, a Address) error {
	return change(c, a, unix.RTM_NEWADDR, netlink.Create|netlink.Replace)
}

// DeleteAddress removes an address. The error is EADDRNOTAVAIL if the address does not exist.
func DeleteAddress(c *netlink.Conn, a Address) error {
	return change(c, a, unix.RTM_DELADDR, 0)
}

func change(c *netlink.Conn, a Address, kind netlink.HeaderType, flags netlink.HeaderFlags) error {
	data, err := marshalAddress(a)
	if err != nil {
		return err
	}
	_, err = c.Execute(netlink.Message{
		Header: netlink.Header{Type: kind, Flags: netlink.Request | netlink.Acknowledge | flags},
		Data:   data,
	})
	return err
}

// marshalAddress encodes struct ifaddrmsg and its attributes.
func marshalAddress(a Address) ([]byte, error) {
	ip := a.Prefix.Addr()
	head := make([]byte, unix.SizeofIfAddrmsg)
	head[0] = family(ip)
	head[1] = uint8(a.Prefix.Bits())
	if ip.IsLoopback() {
		head[3] = unix.RT_SCOPE_HOST
	} else if ip.IsLinkLocalUnicast() {
		head[3] = unix.RT_SCOPE_LINK
	}
	binary.NativeEndian.PutUint32(head[4:8], uint32(a.Index))

	ae := netlink.NewAttributeEncoder()
	ae.Bytes(unix.IFA_LOCAL, ip.AsSlice())
	ae.Bytes(unix.IFA_ADDRESS, ip.AsSlice())
	if ip.Is4() && a.Prefix.Bits() < 31 { // RFC 3021: a /31 has no broadcast address
		ae.Bytes(unix.IFA_BROADCAST, lastAddress(a.Prefix).AsSlice())
	}
	ae.Uint32(unix.IFA_FLAGS, a.Flags)
	if a.Protocol != 0 {
		ae.Uint8(ifaProto, a.Protocol)
	}
	attrs, err := ae.Encode()
	return append(head, attrs...), err
}

func parseAddress(b []byte) (Address, error) {
	if len(b) < unix.SizeofIfAddrmsg {
		return Address{}, fmt.Errorf("address message of %d bytes is too short", len(b))
	}
	a := Address{Index: int(binary.NativeEndian.Uint32(b[4:8])), Flags: uint32(b[2])}
	bits := int(b[1])
	ad, err := netlink.NewAttributeDecoder(b[unix.SizeofIfAddrmsg:])
	if err != nil {
		return Address{}, err
	}
	var address, local netip.Addr
	for ad.Next() {
		switch ad.Type() {
		case unix.IFA_ADDRESS:
			address, _ = netip.AddrFromSlice(ad.Bytes())
		case unix.IFA_LOCAL:
			local, _ = netip.AddrFromSlice(ad.Bytes())
		case unix.IFA_FLAGS:
			a.Flags = ad.Uint32()
		case ifaProto:
			a.Protocol = ad.Uint8()
		}
	}
	// On a point-to-point link, IFA_ADDRESS is the address of the peer, and IFA_LOCAL that of the
	// link. On other links, both are equal for IPv4, and IPv6 addresses have no IFA_LOCAL.
	if local.IsValid() {
		address = local
	}
	if address.IsValid() {
		a.Prefix = netip.PrefixFrom(address, bits)
	}
	return a, ad.Err()
}

func family(ip netip.Addr) uint8 {
	if ip.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// lastAddress returns the last IPv4 address of a subnet.
func lastAddress(p netip.Prefix) netip.Addr {
	b := p.Addr().As4()
	host := uint32(1)<<(32-p.Bits()) - 1
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])|host)
	return netip.AddrFrom4(b)
}
