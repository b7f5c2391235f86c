package lldp

import (
	"errors"
	"fmt"
	"net"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// lldpFilter passes LLDP frames to the three group addresses of LLDP (IEEE 802.1AB-2016, table
// 7-1). The protocol of the socket already selects the EtherType; the filter also drops frames that
// a host sends to the machine's own address.
var lldpFilter = []bpf.Instruction{
	bpf.LoadAbsolute{Off: 12, Size: 2},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: etherType, SkipTrue: 7},
	bpf.LoadAbsolute{Off: 0, Size: 4},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0x0180c200, SkipTrue: 5},
	bpf.LoadAbsolute{Off: 4, Size: 2},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0x000e, SkipTrue: 2},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0x0003, SkipTrue: 1},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0x0000, SkipTrue: 1},
	bpf.RetConstant{Val: maxFrame},
	bpf.RetConstant{Val: 0},
}

// buffer is the size of the receive buffer in bytes. It is small, because the kernel should drop
// the frames of a flood.
const buffer = 16 << 10

// Listen opens a packet socket for LLDP on a link. It also receives the frames of a member of a
// bond or bridge.
func Listen(l Link) (net.PacketConn, error) {
	filter, err := bpf.Assemble(lldpFilter)
	if err != nil {
		return nil, fmt.Errorf("LLDP: filter: %w", err)
	}
	conn, err := packet.Listen(&net.Interface{Index: l.Index, Name: l.Name, HardwareAddr: l.MAC}, packet.Raw, etherType, &packet.Config{Filter: filter})
	if err != nil {
		return nil, fmt.Errorf("LLDP: link %s: cannot open a socket: %w", l.Name, err)
	}
	if err := prepare(conn); err != nil {
		conn.Close()
		return nil, fmt.Errorf("LLDP: link %s: cannot receive: %w", l.Name, err)
	}
	return conn, nil
}

// prepare joins the groups, so that the network interface delivers frames to the group addresses.
// The kernel leaves the groups when the socket is closed.
func prepare(conn *packet.Conn) error {
	for _, last := range []byte{0x0e, 0x03, 0x00} {
		if err := conn.JoinGroup(net.HardwareAddr{0x01, 0x80, 0xc2, 0, 0, last}); err != nil {
			return err
		}
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, buffer)
	}); err != nil {
		return err
	}
	return failed
}

// destination is the address of the announcements for the socket.
func destination() net.Addr { return &packet.Addr{HardwareAddr: nearestBridge} }

// isDown reports whether an error of the socket means that the link is down. The kernel returns
// this error once, and the socket stays usable.
func isDown(err error) bool { return errors.Is(err, unix.ENETDOWN) || errors.Is(err, unix.ENXIO) }
