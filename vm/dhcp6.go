package vm

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/dhcpv6/server6"
	"github.com/insomniacslk/dhcp/iana"
	"github.com/insomniacslk/dhcp/rfc1035label"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
)

// startDHCP6 starts the DHCPv6 server. The returned function ends it.
func (r router) startDHCP6() (func(), error) {
	// All_DHCP_Relay_Agents_and_Servers (RFC 8415, section 7.1)
	group := netip.MustParseAddr("ff02::1:2")
	if err := r.n.gateway.stack.JoinGroup(ipv6.ProtocolNumber, nic, tcpip.AddrFrom16(group.As16())); err != nil {
		return nil, fmt.Errorf("network: cannot join the group of DHCPv6 servers: %s", err)
	}
	conn, err := r.n.gateway.listenPacket(dhcpv6.DefaultServerPort, ipv6.ProtocolNumber)
	if err != nil {
		return nil, err
	}
	server, err := server6.NewServer("", nil, r.answerDHCP6, server6.WithConn(conn))
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("network: cannot start the DHCPv6 server: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		server.Serve() // ends with an error when conn is closed
	}()
	return func() { server.Close(); <-ended }, nil
}

// answerDHCP6 handles a DHCPv6 message. It answers only registered machines, and finds the machine
// by the hardware address in the link-local source address.
func (r router) answerDHCP6(conn net.PacketConn, peer net.Addr, d dhcpv6.DHCPv6) {
	m, ok := d.(*dhcpv6.Message)
	from, isUDP := peer.(*net.UDPAddr)
	if !ok || !isUDP {
		return
	}
	addr, _ := netip.AddrFromSlice(from.IP)
	mac, ok := macOfEUI64(addr)
	r.n.mu.Lock()
	known := ok && r.n.leases[mac] != nil
	r.n.mu.Unlock()
	if !known {
		return
	}
	if reply := r.dhcp6Reply(m, mac); reply != nil {
		conn.WriteTo(reply.ToBytes(), peer) // if the answer is lost, the client repeats its request
	}
}

// dhcp6Reply returns the answer to m for a machine; nil: m gets no answer.
func (r router) dhcp6Reply(m *dhcpv6.Message, mac macAddr) *dhcpv6.Message {
	id := &dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: r.n.gateway.mac[:]}
	if s := m.Options.ServerID(); s != nil && !s.Equal(id) {
		return nil // the client chose another server
	}
	client := m.GetOneOption(dhcpv6.OptionClientID)
	if client == nil && m.MessageType != dhcpv6.MessageTypeInformationRequest {
		return nil
	}
	reply := &dhcpv6.Message{MessageType: dhcpv6.MessageTypeReply, TransactionID: m.TransactionID}
	if client != nil {
		reply.AddOption(client)
	}
	reply.AddOption(dhcpv6.OptServerID(id))
	switch m.MessageType {
	case dhcpv6.MessageTypeSolicit:
		if rapid := m.GetOneOption(dhcpv6.OptionRapidCommit); rapid != nil {
			reply.AddOption(rapid)
		} else {
			reply.MessageType = dhcpv6.MessageTypeAdvertise
		}
	case dhcpv6.MessageTypeRequest, dhcpv6.MessageTypeRenew, dhcpv6.MessageTypeRebind, dhcpv6.MessageTypeInformationRequest:
	case dhcpv6.MessageTypeConfirm:
		status := &dhcpv6.OptStatusCode{StatusCode: iana.StatusSuccess}
		if ia := m.Options.OneIANA(); ia != nil && slices.ContainsFunc(ia.Options.Addresses(), func(a *dhcpv6.OptIAAddress) bool {
			addr, _ := netip.AddrFromSlice(a.IPv6Addr)
			return !r.n.spec.IPv6.Prefix.Contains(addr)
		}) {
			status.StatusCode = iana.StatusNotOnLink
		}
		reply.AddOption(status)
		return reply
	case dhcpv6.MessageTypeRelease, dhcpv6.MessageTypeDecline:
		return reply // nothing changes: addresses are fixed
	default:
		return nil
	}
	r.grant6(m, reply, mac)
	gateway := net.IP(r.n.spec.IPv6.gateway().AsSlice())
	reply.AddOption(dhcpv6.OptDNS(gateway))
	reply.AddOption(dhcpv6.OptDomainSearchList(&rfc1035label.Labels{Labels: []string{r.n.spec.Domain}}))
	server := dhcpv6.NTPSuboptionSrvAddr(gateway)
	reply.AddOption(&dhcpv6.OptNTPServer{Suboptions: dhcpv6.Options{&server}})
	if r.n.offered() != "" {
		r.offerBoot6(m, reply)
	}
	return reply
}

// grant6 adds to reply the answers to the requests for addresses and prefixes in m.
func (r router) grant6(m, reply *dhcpv6.Message, mac macAddr) {
	six, lease := r.n.spec.IPv6, r.n.spec.Lease
	if ia := m.Options.OneIANA(); ia != nil {
		answer := &dhcpv6.OptIANA{IaId: ia.IaId}
		if six.Mode == IPv6Stateful {
			answer.Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: six.addrOf(mac).AsSlice(), PreferredLifetime: lease, ValidLifetime: 2 * lease})
		} else {
			answer.Options.Add(&dhcpv6.OptStatusCode{StatusCode: iana.StatusNoAddrsAvail, StatusMessage: "addresses come from router advertisements"})
		}
		reply.AddOption(answer)
	}
	if ia := m.Options.OneIAPD(); ia != nil {
		answer := &dhcpv6.OptIAPD{IaId: ia.IaId}
		if p := six.delegatedTo(mac); six.Delegated.IsValid() {
			answer.Options.Add(&dhcpv6.OptIAPrefix{PreferredLifetime: lease, ValidLifetime: 2 * lease,
				Prefix: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 128)}})
		} else {
			answer.Options.Add(&dhcpv6.OptStatusCode{StatusCode: iana.StatusNoPrefixAvail})
		}
		reply.AddOption(answer)
	}
}
