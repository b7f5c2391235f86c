package dhcp

import (
	"fmt"
	"net"
	"slices"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/machined/network/linksocket"
	"github.com/orlop-os/orlop/pkg/panics"
)

// task names the goroutine that reads messages, in reports of panics.
const task = "DHCP on a link"

type socket = linksocket.Socket[incoming]

// incoming is a decoded message. err describes a truncated option.
type incoming struct {
	*dhcpv4.DHCPv4
	err error
}

// openSocket opens a socket on a link. With withAddress, the link has its address and the socket is
// a UDP socket. Otherwise it is a packet socket, which also works without an address.
func openSocket(link string, index int, mac net.HardwareAddr, withAddress bool) (*socket, error) {
	open := openPacket
	if withAddress {
		open = openUDP
	}
	conn, err := open(&net.Interface{Index: index, Name: link, HardwareAddr: mac})
	if err != nil {
		return nil, fmt.Errorf("link %s: cannot open a socket for DHCP: %w", link, err)
	}
	return linksocket.Read(conn, task, maxMessage, func(b []byte, _ net.Addr) (in incoming, ok bool) {
		in.err = panics.Do(task, func() (err error) { in.DHCPv4, err = decode(slices.Clone(b)); return err })
		return in, in.DHCPv4 != nil
	}), nil
}

func openPacket(link *net.Interface) (net.PacketConn, error) {
	filter, err := bpf.Assemble(clientPackets)
	if err != nil {
		return nil, err
	}
	raw, err := packet.Listen(link, packet.Datagram, unix.ETH_P_IP, &packet.Config{Filter: filter})
	if err != nil {
		return nil, err
	}
	return nclient4.NewBroadcastUDPConn(raw, &net.UDPAddr{Port: clientPort}), nil
}

// clientPackets is a filter that passes only UDP packets to the port of the client, and of these
// only the first fragments. Offsets are relative to the IPv4 header. Without the filter, every
// packet of the machine would wake PID 1.
var clientPackets = []bpf.Instruction{
	bpf.LoadAbsolute{Off: 9, Size: 1},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_UDP, SkipTrue: 6},
	bpf.LoadAbsolute{Off: 6, Size: 2},
	bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: 0x1fff, SkipTrue: 4},
	bpf.LoadMemShift{Off: 0},
	bpf.LoadIndirect{Off: 2, Size: 2},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: clientPort, SkipTrue: 1},
	bpf.RetConstant{Val: 0xffff},
	bpf.RetConstant{Val: 0},
}

// openUDP opens a UDP socket that is bound to the link, but to no address, because servers send a
// NAK by broadcast.
func openUDP(link *net.Interface) (net.PacketConn, error) {
	return linksocket.Listen("udp4", link.Name, clientPort, true)
}
