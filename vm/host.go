package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/link/ethernet"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/orlop-os/orlop/pkg/cell"
)

const (
	nic        = tcpip.NICID(1)
	networkMTU = 1500
)

// Host is a computer on the closed network that exists only in this process: an IP stack on a port
// of the switch. The gateway is a Host, and tests create further Hosts as clients, servers and
// scanners. A Host never forwards packets.
type Host struct {
	name  string
	mac   macAddr
	addr  netip.Addr // invalid: the host has no address yet
	six   netip.Addr // invalid: the host has no IPv6
	names func(string) []netip.Addr
	stack *stack.Stack
	link  *channel.Endpoint
	port  *port
	stop  context.CancelFunc
	ended chan struct{}
	// A router solicitation wakes solicited, which only the gateway reads. solicited is nil if the
	// host has no IPv6.
	solicited cell.Signal
}

// newHost creates a host and attaches it to the switch. Like the machines, its IP stack uses the
// clock of the network. gateway is the default router; if it is invalid, the host reaches only its
// subnet. If six is on, the host also has IPv6.
func newHost(sw *ethSwitch, clock Clock, name string, mac macAddr, addr netip.Prefix, gateway netip.Addr, six IPv6Spec) (*Host, error) {
	h := &Host{name: name, mac: mac, addr: addr.Addr(), ended: make(chan struct{})}
	options := stack.Options{
		Clock:              stackClock{tcpip.NewStdClock(), clock},
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4},
	}
	if six.on() {
		h.solicited = cell.NewSignal()
		networks, transports := protocols6()
		options.NetworkProtocols = append(options.NetworkProtocols, networks...)
		options.TransportProtocols = append(options.TransportProtocols, transports...)
	}
	h.stack = stack.New(options)
	h.link = channel.New(portQueue, networkMTU+ethHeader, tcpip.LinkAddress(mac[:]))
	// Frames come from memory and are not damaged, so the stack need not verify checksums.
	h.link.LinkEPCapabilities = stack.CapabilityRXChecksumOffload
	if err := h.stack.CreateNIC(nic, ethernet.New(h.link)); err != nil {
		return nil, fmt.Errorf("host %s: cannot create the interface: %s", name, err)
	}
	sack := tcpip.TCPSACKEnabled(true)
	if err := h.stack.SetTransportProtocolOption(tcp.ProtocolNumber, &sack); err != nil {
		return nil, fmt.Errorf("host %s: cannot set TCP options: %s", name, err)
	}
	if addr.IsValid() {
		if err := h.setAddress(addr, gateway); err != nil {
			return nil, err
		}
	}
	if six.on() {
		own, router := six.addrOf(mac), six.gateway()
		if name == GatewayName {
			own, router = six.gateway(), netip.Addr{}
		}
		if err := h.setIPv6(netip.PrefixFrom(own, 64), router); err != nil {
			return nil, err
		}
	}
	h.port = sw.attach(name, h.deliver)
	ctx, stop := context.WithCancel(context.Background())
	h.stop = stop
	go h.transmit(ctx)
	return h, nil
}

func (h *Host) setAddress(addr netip.Prefix, gateway netip.Addr) error {
	h.addr = addr.Addr()
	p := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: tcpip.AddressWithPrefix{
		Address: tcpip.AddrFrom4(addr.Addr().As4()), PrefixLen: addr.Bits()}}
	if err := h.stack.AddProtocolAddress(nic, p, stack.AddressProperties{}); err != nil {
		return fmt.Errorf("host %s: cannot add the address %s: %s", h.name, addr, err)
	}
	routes := []tcpip.Route{{Destination: p.AddressWithPrefix.Subnet(), NIC: nic}}
	if gateway.IsValid() {
		routes = append(routes, tcpip.Route{Destination: header.IPv4EmptySubnet, Gateway: tcpip.AddrFrom4(gateway.As4()), NIC: nic})
	}
	h.stack.SetRouteTable(routes)
	return nil
}

// deliver passes frames from the switch to the stack.
func (h *Host) deliver(frames []frame) error {
	for _, f := range frames {
		if dst := f.dst(); dst != h.mac && !dst.group() {
			continue // flooded, for another host; a real interface ignores it, too
		}
		h.hear(f.eth())
		if h.solicited != nil && isSolicitation(f.eth()) {
			h.solicited.Wake()
		}
		p := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(f.eth())})
		h.link.InjectInbound(0, p)
		p.DecRef()
	}
	return nil
}

// hear processes ARP announcements (RFC 5227, section 3), because the stack ignores them. It
// deletes the neighbor entry of an address that another machine announces. The next packet to the
// address then triggers an ARP request.
func (h *Host) hear(eth []byte) {
	if header.Ethernet(eth).Type() != header.ARPProtocolNumber {
		return
	}
	said := header.ARP(eth[ethHeader:])
	if !said.IsValid() || !bytes.Equal(said.ProtocolAddressSender(), said.ProtocolAddressTarget()) {
		return
	}
	addr := tcpip.AddrFrom4Slice(said.ProtocolAddressSender())
	known, err := h.stack.Neighbors(nic, ipv4.ProtocolNumber)
	if err != nil {
		return // the host is being closed
	}
	for _, n := range known {
		if n.Addr == addr && n.LinkAddr != tcpip.LinkAddress(said.HardwareAddressSender()) {
			h.stack.RemoveNeighbor(nic, ipv4.ProtocolNumber, addr) // it may already be deleted
		}
	}
}

// transmit passes packets of the stack to the switch until ctx ends.
func (h *Host) transmit(ctx context.Context) {
	defer close(h.ended)
	for {
		p := h.link.ReadContext(ctx)
		if p == nil {
			return
		}
		f := newFrame(p.Size())
		rest := f.eth()
		for _, part := range p.AsSlices() {
			rest = rest[copy(rest, part):]
		}
		p.DecRef()
		h.port.receive(f)
	}
}

// Six returns the host's IPv6 address; invalid without IPv6.
func (h *Host) Six() netip.Addr { return h.six }

// Addr returns the host's IPv4 address.
func (h *Host) Addr() netip.Addr { return h.addr }

// Name returns the host's name, which is also its name on the switch (Network.Partition,
// Network.SetFaults).
func (h *Host) Name() string { return h.name }

// DialContext connects to a TCP or UDP address of the closed network ("10.77.0.11:50000" or
// "cp1:50000"). The method fits http.Transport.DialContext and, with a fixed network, the dialer of
// gRPC. It cannot reach the host's network.
func (h *Host) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	to, err := h.resolve(address)
	if err != nil {
		return nil, fmt.Errorf("host %s: cannot dial %s: %w", h.name, address, err)
	}
	protocol := ipv4.ProtocolNumber
	if to.Addr.BitLen() == 128 {
		protocol = ipv6.ProtocolNumber
	}
	switch network {
	case "tcp", "tcp4":
		conn, err := gonet.DialContextTCP(ctx, h.stack, to, protocol)
		if err != nil {
			return nil, fmt.Errorf("host %s: cannot dial tcp %s: %w", h.name, address, err)
		}
		return conn, nil
	case "udp", "udp4":
		conn, err := gonet.DialUDP(h.stack, nil, &to, protocol)
		if err != nil {
			return nil, fmt.Errorf("host %s: cannot dial udp %s: %w", h.name, address, err)
		}
		return conn, nil
	}
	return nil, fmt.Errorf("host %s: cannot dial %s: network %q is not tcp or udp", h.name, address, network)
}

// Listen opens a TCP listener on a port of the host (0: a free port), for IPv4, and for IPv6 if the
// host has IPv6.
func (h *Host) Listen(port uint16) (net.Listener, error) {
	protocol := ipv4.ProtocolNumber
	if h.six.IsValid() {
		protocol = ipv6.ProtocolNumber
	}
	l, err := gonet.ListenTCP(h.stack, tcpip.FullAddress{NIC: nic, Port: port}, protocol)
	if err != nil {
		return nil, fmt.Errorf("host %s: cannot listen on tcp port %d: %w", h.name, port, err)
	}
	return l, nil
}

// ListenPacket opens a UDP port of the host for IPv4 (0: a free port). The port can also receive
// and send broadcasts.
func (h *Host) ListenPacket(port uint16) (net.PacketConn, error) {
	return h.listenPacket(port, ipv4.ProtocolNumber)
}

// listenPackets opens a UDP port for each IP version of the host: first IPv4, then IPv6.
func (h *Host) listenPackets(port uint16) ([]net.PacketConn, error) {
	conn, err := h.ListenPacket(port)
	if err != nil || !h.six.IsValid() {
		return []net.PacketConn{conn}, err
	}
	six, err := h.listenPacket(port, ipv6.ProtocolNumber)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return []net.PacketConn{conn, six}, nil
}

func (h *Host) listenPacket(port uint16, protocol tcpip.NetworkProtocolNumber) (net.PacketConn, error) {
	var queue waiter.Queue
	ep, err := h.stack.NewEndpoint(udp.ProtocolNumber, protocol, &queue)
	if err != nil {
		return nil, fmt.Errorf("host %s: cannot open a UDP socket: %s", h.name, err)
	}
	ep.SocketOptions().SetBroadcast(true)
	ep.SocketOptions().SetV6Only(protocol == ipv6.ProtocolNumber)
	if err := ep.Bind(tcpip.FullAddress{NIC: nic, Port: port}); err != nil {
		ep.Close()
		return nil, fmt.Errorf("host %s: cannot listen on udp port %d: %s", h.name, port, err)
	}
	return gonet.NewUDPConn(&queue, ep), nil
}

func (h *Host) resolve(address string) (tcpip.FullAddress, error) {
	name, service, err := net.SplitHostPort(address)
	if err != nil {
		return tcpip.FullAddress{}, err
	}
	n, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return tcpip.FullAddress{}, fmt.Errorf("port %q is not a number from 0 to 65535", service)
	}
	addr, err := netip.ParseAddr(name)
	if err != nil {
		var found []netip.Addr
		if h.names != nil {
			found = h.names(name)
		}
		if len(found) == 0 {
			return tcpip.FullAddress{}, fmt.Errorf("%s is neither an address nor a name of this network", name)
		}
		addr = found[0]
	}
	to := tcpip.FullAddress{NIC: nic, Port: uint16(n)}
	switch {
	case addr.Is4():
		to.Addr = tcpip.AddrFrom4(addr.As4())
	case h.six.IsValid():
		to.Addr = tcpip.AddrFrom16(addr.As16())
	default:
		return tcpip.FullAddress{}, errors.New("the network has no IPv6 router, so only IPv4 addresses can be dialled")
	}
	return to, nil
}

// Close removes the host from the network; its connections fail.
func (h *Host) Close() {
	h.stop()
	<-h.ended
	h.port.close()
	h.stack.Close()
	h.link.Close()
}
