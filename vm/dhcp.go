package vm

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/server4"
)

// DHCPMode is the behavior of the DHCP server toward a machine.
type DHCPMode string

const (
	// DHCPAnswer gives the machine its address. It is the default.
	DHCPAnswer DHCPMode = ""
	// DHCPIgnore does not answer.
	DHCPIgnore DHCPMode = "silent"
	// DHCPNak offers an address and rejects every request for it (RFC 2131, section 4.3.2).
	DHCPNak DHCPMode = "nak"
)

// SetDHCP switches the DHCP server of the whole network on or off.
func (n *Network) SetDHCP(on bool) { n.control.noDHCP.Store(!on) }

// SetMachineDHCP sets the behavior of the DHCP server toward a machine.
func (n *Network) SetMachineDHCP(name string, mode DHCPMode) error {
	switch mode {
	case DHCPAnswer, DHCPIgnore, DHCPNak:
	default:
		return fmt.Errorf("network: cannot set DHCP of %s: mode %q is none of \"\", %q and %q", name, mode, DHCPIgnore, DHCPNak)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.leases {
		if l.name == name {
			l.dhcp = mode
			return nil
		}
	}
	return fmt.Errorf("network: cannot set DHCP of %s: no such machine", name)
}

func (n *Network) startDHCP() (func(), error) {
	n.control.noDHCP.Store(n.spec.NoDHCP || n.spec.IPv6.Only)
	conn, err := n.gateway.ListenPacket(dhcpv4.ServerPort)
	if err != nil {
		return nil, err
	}
	server, err := server4.NewServer("", nil, n.answerDHCP, server4.WithConn(conn))
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("network: cannot start the DHCP server: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		server.Serve() // ends with an error when conn is closed
	}()
	return func() { server.Close(); <-ended }, nil
}

// answerDHCP handles a DHCP request. It answers only registered machines.
func (n *Network) answerDHCP(conn net.PacketConn, peer net.Addr, m *dhcpv4.DHCPv4) {
	if m.OpCode != dhcpv4.OpcodeBootRequest || len(m.ClientHWAddr) != 6 || n.control.noDHCP.Load() {
		return
	}
	n.mu.Lock()
	known := n.leases[macAddr(m.ClientHWAddr)]
	var l lease
	if known != nil {
		l = *known
	}
	n.mu.Unlock()
	if known == nil || l.dhcp == DHCPIgnore {
		return
	}
	reply, err := n.dhcpReply(m, l)
	if err != nil || reply == nil {
		return
	}
	// A client without an address gets the answer by broadcast. A client that renews its lease gets
	// the answer at its address (RFC 2131, section 4.1).
	to := &net.UDPAddr{IP: net.IPv4bcast, Port: dhcpv4.ClientPort}
	if !m.ClientIPAddr.IsUnspecified() && reply.MessageType() != dhcpv4.MessageTypeNak {
		to.IP = m.ClientIPAddr
	}
	conn.WriteTo(reply.ToBytes(), to) // if the answer is lost, the client repeats its request
}

// dhcpReply returns the answer to m for the machine of lease l, or nil if m gets no answer.
func (n *Network) dhcpReply(m *dhcpv4.DHCPv4, l lease) (*dhcpv4.DHCPv4, error) {
	gateway := net.IP(n.gateway.addr.AsSlice())
	reply, err := dhcpv4.NewReplyFromRequest(m, dhcpv4.WithServerIP(gateway), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(gateway)))
	if err != nil {
		return nil, err
	}
	switch m.MessageType() {
	case dhcpv4.MessageTypeDiscover:
		reply.UpdateOption(dhcpv4.OptMessageType(dhcpv4.MessageTypeOffer))
	case dhcpv4.MessageTypeRequest:
		if id := m.ServerIdentifier(); id != nil && !id.Equal(gateway) {
			return nil, nil // the client chose another server
		}
		wanted, _ := netip.AddrFromSlice(m.RequestedIPAddress().To4())
		if !wanted.IsValid() {
			wanted, _ = netip.AddrFromSlice(m.ClientIPAddr.To4())
		}
		if l.dhcp == DHCPNak || wanted != l.addr {
			reply.UpdateOption(dhcpv4.OptMessageType(dhcpv4.MessageTypeNak))
			reply.SetBroadcast()
			return reply, nil
		}
		reply.UpdateOption(dhcpv4.OptMessageType(dhcpv4.MessageTypeAck))
	case dhcpv4.MessageTypeInform:
		reply.UpdateOption(dhcpv4.OptMessageType(dhcpv4.MessageTypeAck))
	default:
		return nil, nil // decline and release change nothing: addresses are fixed
	}
	if m.MessageType() != dhcpv4.MessageTypeInform {
		reply.YourIPAddr = l.addr.AsSlice()
		reply.UpdateOption(dhcpv4.OptIPAddressLeaseTime(n.spec.Lease))
	}
	reply.UpdateOption(dhcpv4.OptSubnetMask(net.CIDRMask(n.spec.Subnet.Bits(), 32)))
	if !n.spec.NoRouter {
		reply.UpdateOption(dhcpv4.OptRouter(gateway))
	}
	reply.UpdateOption(dhcpv4.OptDNS(gateway))
	reply.UpdateOption(dhcpv4.OptNTPServers(gateway))
	reply.UpdateOption(dhcpv4.OptDomainName(n.spec.Domain))
	reply.UpdateOption(dhcpv4.OptHostName(l.name))
	if n.offered() != "" {
		n.offerBoot(m, reply)
	}
	return reply, nil
}
