package dhcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"syscall"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/panics"
)

// socket is an open socket with the goroutine that reads it.
type socket struct {
	conn        net.PacketConn
	withAddress bool
	packets     chan incoming
	done        chan struct{}
}

// incoming is a message, with the error of its options.
type incoming struct {
	*dhcpv4.DHCPv4
	err error
}

// openSocket opens a UDP socket (the link has its address) or a packet socket (the link may have
// none) on a link.
func openSocket(link string, index int, mac net.HardwareAddr, withAddress bool) (*socket, error) {
	open := openPacket
	if withAddress {
		open = openUDP
	}
	conn, err := open(&net.Interface{Index: index, Name: link, HardwareAddr: mac})
	if err != nil {
		return nil, fmt.Errorf("link %s: cannot open a socket for DHCP: %w", link, err)
	}
	s := &socket{conn: conn, withAddress: withAddress, packets: make(chan incoming), done: make(chan struct{})}
	panics.Go("DHCP on a link", s.read)
	return s, nil
}

// close closes the socket and ends its reader. A nil socket is closed already.
func (s *socket) close() {
	if s == nil {
		return
	}
	close(s.done)
	s.conn.Close()
}

// read delivers every DHCP message until the socket is closed.
func (s *socket) read() {
	buf := make([]byte, maxMessage)
	for {
		n, _, err := s.conn.ReadFrom(buf)
		// The kernel reports a link that is down, or an answer to a closed port, once; the socket
		// stays usable.
		if errors.Is(err, unix.ENETDOWN) || errors.Is(err, unix.ECONNREFUSED) {
			continue
		}
		if err != nil {
			return
		}
		var p *dhcpv4.DHCPv4
		err = panics.Do("DHCP on a link", func() (err error) { p, err = decode(slices.Clone(buf[:n])); return err })
		if p == nil {
			continue
		}
		select {
		case s.packets <- incoming{p, err}:
		case <-s.done:
			return
		}
	}
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

// clientPackets passes first fragments of UDP packets to the client's port; offsets are relative to
// the IPv4 header. Without it, every packet of the machine would wake PID 1.
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

// openUDP binds to the link without an address, because a NAK is sent by broadcast.
func openUDP(link *net.Interface) (net.PacketConn, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) {
			failed = errors.Join(
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1),
				unix.BindToDevice(int(fd), link.Name))
		})
		return errors.Join(err, failed)
	}}
	return lc.ListenPacket(context.Background(), "udp4", fmt.Sprintf(":%d", clientPort))
}
