package capture

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/mdlayher/socket"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Options configures a capture.
type Options struct {
	// Filter is a program from Compile, or any other program that the kernel accepts. If it is
	// empty, all packets pass.
	Filter []bpf.RawInstruction
	// Snaplen is the maximum number of recorded bytes of a packet, up to MaxSnaplen; 0 means
	// MaxSnaplen.
	Snaplen int
	// Promiscuous means that, during the capture, the link also receives packets for the hardware
	// addresses of other machines.
	Promiscuous bool
}

// Packet is a recorded packet.
type Packet struct {
	Time   time.Time
	Length int    // bytes of the whole packet
	Data   []byte // the recorded bytes, at most Options.Snaplen
}

const (
	// kernelBuffer is the size in bytes of the kernel's queue of packets, including metadata. If
	// the queue is full, the kernel drops packets. The queue can hold the packets of about 20 ms on
	// a link with 1 Gbit/s.
	kernelBuffer = 2 << 20
	// batch is the number of bytes at which Next reads no further packet. A result can be larger
	// than batch by a part of its last packet.
	batch = 64 << 10
	// packetCost is the number of bytes of memory that a packet needs in addition to its data. It
	// counts for batch.
	packetCost = 64
)

// Capture is a socket that receives packets. It must be used by a single goroutine.
type Capture struct {
	link    string
	kind    LinkType
	conn    *socket.Conn
	raw     syscall.RawConn
	packet  []byte // buffer for the current packet
	control []byte // buffer for its control messages
	dropped uint64
	err     error // reason for the end of the capture
}

// Open starts a capture on the link with this name. The capture records only packets that pass the
// filter. The caller ends the capture with Close.
func Open(link string, o Options) (*Capture, error) {
	if o.Snaplen == 0 {
		o.Snaplen = MaxSnaplen
	}
	if o.Snaplen < 0 || o.Snaplen > MaxSnaplen {
		return nil, fmt.Errorf("link %s: cannot capture: packets of %d bytes; expected 1 to %d", link, o.Snaplen, MaxSnaplen)
	}
	at, err := find(link)
	if err != nil {
		return nil, fmt.Errorf("link %s: cannot capture: %w", link, err)
	}
	conn, err := socket.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0, "packet", nil)
	if err != nil {
		return nil, fmt.Errorf("link %s: cannot capture: %w", link, err)
	}
	c := &Capture{link: link, conn: conn, packet: make([]byte, o.Snaplen), control: make([]byte, 256)}
	if err := c.attach(at, o); err != nil {
		return nil, errors.Join(fmt.Errorf("link %s: cannot capture: %w", link, err), conn.Close())
	}
	return c, nil
}

// find returns a link by its name. If it is missing or down, the error lists the links that are up.
func find(name string) (net.Interface, error) {
	links, err := net.Interfaces()
	if err != nil {
		return net.Interface{}, err
	}
	var up []string
	found := net.Interface{}
	for _, l := range links {
		if l.Flags&net.FlagUp != 0 {
			up = append(up, l.Name)
		}
		if l.Name == name {
			found = l
		}
	}
	slices.Sort(up)
	switch {
	case found.Name == "":
		err = ErrNoLink
	case found.Flags&net.FlagUp == 0:
		err = errors.New("it is down")
	default:
		return found, nil
	}
	return found, fmt.Errorf("%w; links that are up: %s", err, strings.Join(up, ", "))
}

// attach configures the socket to receive packets of the link. The last Bind sets the protocol of
// the socket. Before it, the socket receives no packets, so no packet bypasses the filter.
func (c *Capture) attach(at net.Interface, o Options) (err error) {
	if err = c.conn.Bind(&unix.SockaddrLinklayer{Ifindex: at.Index}); err != nil {
		return err
	}
	if c.kind, err = c.linkType(); err != nil {
		return err
	}
	program, err := Program(c.kind, o.Filter)
	if err != nil {
		return err
	}
	if err = c.conn.SetBPF(program); err != nil {
		return fmt.Errorf("%w: %w", ErrFilter, err)
	}
	if err = c.conn.SetReadBuffer(kernelBuffer); err != nil {
		return err
	}
	options := []struct{ level, option int }{{unix.SOL_PACKET, unix.PACKET_AUXDATA}, {unix.SOL_SOCKET, unix.SO_TIMESTAMPNS}}
	if at.Flags&net.FlagLoopback != 0 {
		// The loopback link receives each packet that it sends. Without this option, each packet
		// would be recorded twice.
		options = append(options, struct{ level, option int }{unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING})
	}
	for _, s := range options {
		if err = c.conn.SetsockoptInt(s.level, s.option, 1); err != nil {
			return err
		}
	}
	if o.Promiscuous {
		// The kernel counts the sockets that request promiscuous mode for a link. It ends the mode
		// when the last of these sockets is closed.
		want := unix.PacketMreq{Ifindex: int32(at.Index), Type: unix.PACKET_MR_PROMISC}
		if err = c.conn.SetsockoptPacketMreq(unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &want); err != nil {
			return err
		}
	}
	if c.raw, err = c.conn.SyscallConn(); err != nil {
		return err
	}
	var all [2]byte // the protocol ETH_P_ALL, in network byte order (packet(7))
	binary.BigEndian.PutUint16(all[:], unix.ETH_P_ALL)
	return c.conn.Bind(&unix.SockaddrLinklayer{Ifindex: at.Index, Protocol: binary.NativeEndian.Uint16(all[:])})
}

// linkType returns the kind of header at the beginning of the link's packets.
func (c *Capture) linkType() (LinkType, error) {
	name, err := c.conn.Getsockname()
	if err != nil {
		return 0, err
	}
	at, ok := name.(*unix.SockaddrLinklayer)
	if !ok {
		return 0, fmt.Errorf("the socket has an address of type %T", name)
	}
	switch at.Hatype {
	case unix.ARPHRD_ETHER, unix.ARPHRD_LOOPBACK:
		return Ethernet, nil
	case unix.ARPHRD_NONE, unix.ARPHRD_RAWIP, unix.ARPHRD_TUNNEL, unix.ARPHRD_TUNNEL6, unix.ARPHRD_SIT:
		return IP, nil
	}
	return 0, fmt.Errorf("it has type %d (linux/if_arp.h); only Ethernet and IP tunnels are supported", at.Hatype)
}

// LinkType returns the kind of header at the beginning of each packet.
func (c *Capture) LinkType() LinkType { return c.kind }

// Close ends the capture.
func (c *Capture) Close() error { return c.conn.Close() }

// Next waits until packets are available and returns them, the oldest first. After the end of ctx,
// it returns the packets that were received before, and then, in a further call, the error of ctx.
func (c *Capture) Next(ctx context.Context) ([]Packet, error) {
	// ctx is not passed to the read of the socket: if ctx had a deadline, the read would wait for
	// the deadline even after a cancellation.
	defer context.AfterFunc(ctx, func() {
		// SetReadDeadline fails only if the socket is closed. Then no read waits.
		_ = c.conn.SetReadDeadline(time.Unix(1, 0))
	})()
	var got []Packet
	if c.err == nil && ctx.Err() == nil {
		if err := c.raw.Read(func(fd uintptr) bool { return c.fill(int(fd), &got) }); err != nil && ctx.Err() == nil {
			return nil, fmt.Errorf("link %s: cannot capture: %w", c.link, err)
		}
	}
	if len(got) == 0 && c.err == nil {
		// The context has ended. Let no further packet into the queue, and read the queued packets.
		if err := c.conn.SetBPF(passNone); err != nil {
			return nil, fmt.Errorf("link %s: cannot end the capture: %w", c.link, err)
		}
		if err := c.raw.Control(func(fd uintptr) { c.fill(int(fd), &got) }); err != nil {
			return nil, fmt.Errorf("link %s: cannot capture: %w", c.link, err)
		}
	}
	switch {
	case len(got) > 0:
		return got, nil
	case c.err != nil:
		return nil, fmt.Errorf("link %s: the capture ended: %w", c.link, c.err)
	}
	return nil, ctx.Err()
}

// fill reads the available packets, up to a batch. It returns false if there are none and no error,
// so that Next must wait.
func (c *Capture) fill(fd int, got *[]Packet) bool {
	for size := 0; size < batch; {
		n, controls, _, _, err := unix.Recvmsg(fd, c.packet, c.control, 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return len(*got) > 0
		case errors.Is(err, unix.ENETDOWN):
			c.err = errors.New("the link went down")
			return true
		case err != nil:
			c.err = err
			return true
		}
		p := c.read(c.packet[:n], c.control[:controls])
		*got = append(*got, p)
		size += len(p.Data) + packetCost
	}
	return true
}

// read converts the data from the kernel to a Packet. The Packet does not refer to the buffers.
func (c *Capture) read(data, control []byte) Packet {
	p := Packet{Length: len(data)}
	var tag []byte
	for len(control) > 0 {
		header, value, rest, err := unix.ParseOneSocketControlMessage(control)
		if err != nil {
			break
		}
		control = rest
		switch {
		case header.Level == unix.SOL_PACKET && header.Type == unix.PACKET_AUXDATA:
			var about unix.TpacketAuxdata
			if _, err := binary.Decode(value, binary.NativeEndian, &about); err == nil {
				p.Length, tag = int(about.Len), vlanTag(about)
			}
		case header.Level == unix.SOL_SOCKET && header.Type == unix.SCM_TIMESTAMPNS:
			var at unix.Timespec
			if _, err := binary.Decode(value, binary.NativeEndian, &at); err == nil {
				p.Time = time.Unix(at.Unix())
			}
		}
	}
	// The kernel has removed the VLAN tag. Insert it after the two hardware addresses.
	if c.kind == Ethernet && len(tag) > 0 && len(data) >= 12 {
		p.Data = slices.Concat(data[:12], tag, data[12:])
		p.Data = p.Data[:min(len(p.Data), len(c.packet))]
		p.Length += len(tag)
	} else {
		p.Data = bytes.Clone(data)
	}
	return p
}

// vlanTag returns the VLAN tag that the kernel has removed from the packet; nil if it had none.
func vlanTag(about unix.TpacketAuxdata) []byte {
	if about.Status&unix.TP_STATUS_VLAN_VALID == 0 {
		return nil
	}
	kind := uint16(etherVLAN)
	if about.Status&unix.TP_STATUS_VLAN_TPID_VALID != 0 {
		kind = about.Vlan_tpid
	}
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, kind), about.Vlan_tci)
}

// Dropped returns the number of packets that the capture has lost so far: they passed the filter,
// but the kernel's queue was full.
func (c *Capture) Dropped() (uint64, error) {
	// The kernel returns the number since the previous call of GetsockoptTpacketStats.
	since, err := c.conn.GetsockoptTpacketStats(unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return c.dropped, fmt.Errorf("link %s: cannot read the number of dropped packets: %w", c.link, err)
	}
	c.dropped += uint64(since.Drops)
	return c.dropped, nil
}
