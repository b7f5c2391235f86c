package dhcp

import (
	"net"
	"net/netip"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// Ports of RFC 2131 section 4.1.
const (
	serverPort = 67
	clientPort = 68
)

// classlessMicrosoft is option 249, the predecessor of option 121 (MS-DHCPE section 2.2.8). Some
// servers send only option 249.
const classlessMicrosoft = dhcpv4.GenericOptionCode(249)

// wanted is the parameter request list (option 55): the options that the client requests. Option
// 121 precedes options 3 and 33, as RFC 3442 requires.
var wanted = dhcpv4.OptionCodeList{
	dhcpv4.OptionSubnetMask,
	dhcpv4.OptionClasslessStaticRoute,
	classlessMicrosoft,
	dhcpv4.OptionRouter,
	dhcpv4.OptionStaticRoutingTable,
	dhcpv4.OptionDomainNameServer,
	dhcpv4.OptionDomainName,
	dhcpv4.OptionDNSDomainSearchList,
	dhcpv4.OptionNTPServers,
	dhcpv4.OptionInterfaceMTU,
	dhcpv4.OptionHostName,
	dhcpv4.OptionIPAddressLeaseTime,
	dhcpv4.OptionServerIdentifier,
	dhcpv4.OptionRenewTimeValue,
	dhcpv4.OptionRebindingTimeValue,
}

// maxMessage is the maximum size of a received message in bytes (option 57): the payload of an
// Ethernet frame.
const maxMessage = 1500

// encode returns the packet for a message. It does not set the broadcast flag, because the packet
// socket of the client receives unicast frames even before the link has the address.
func encode(m Message, mac net.HardwareAddr, hostname string) (*dhcpv4.DHCPv4, error) {
	kind := dhcpv4.MessageTypeRequest
	if m.Discover {
		kind = dhcpv4.MessageTypeDiscover
	}
	mods := []dhcpv4.Modifier{
		dhcpv4.WithTransactionID(dhcpv4.TransactionID{byte(m.XID >> 24), byte(m.XID >> 16), byte(m.XID >> 8), byte(m.XID)}),
		dhcpv4.WithHwAddr(mac),
		dhcpv4.WithMessageType(kind),
		// The identifier is the hardware type and the MAC, which reservations on servers usually
		// contain (RFC 2132 section 9.14).
		dhcpv4.WithOption(dhcpv4.OptClientIdentifier(append([]byte{1}, mac...))),
		dhcpv4.WithOption(dhcpv4.OptParameterRequestList(wanted...)),
		dhcpv4.WithOption(dhcpv4.OptMaxMessageSize(maxMessage)),
	}
	if m.Discover {
		mods = append(mods, dhcpv4.WithGeneric(dhcpv4.OptionRapidCommit, nil))
	}
	if m.Client.IsValid() {
		mods = append(mods, dhcpv4.WithClientIP(m.Client.AsSlice()))
	}
	if m.Requested.IsValid() {
		mods = append(mods, dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(m.Requested.AsSlice())))
	}
	if m.Server.IsValid() {
		mods = append(mods, dhcpv4.WithOption(dhcpv4.OptServerIdentifier(m.Server.AsSlice())))
	}
	if hostname != "" {
		mods = append(mods, dhcpv4.WithOption(dhcpv4.OptHostName(hostname)))
	}
	p, err := dhcpv4.New(mods...)
	if err != nil {
		return nil, err
	}
	p.NumSeconds = m.Secs
	return p, nil
}

// destination returns the UDP destination of a message: the server m.To, or the broadcast address.
func destination(m Message) *net.UDPAddr {
	to := netip.AddrFrom4([4]byte{255, 255, 255, 255})
	if m.To.IsValid() {
		to = m.To
	}
	return net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, serverPort))
}
