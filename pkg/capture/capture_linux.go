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

// Options is what to record.
type Options struct {
	Filter []bpf.RawInstruction // from Compile, or whatever the kernel takes; none for all
	// bytes of each packet that are kept, up to MaxSnaplen; 0 for that
	Snaplen int
	// the link also takes what is not addressed to it, as long as the capture lasts
	Promiscuous bool
}

// Packet is one packet.
type Packet struct {
	Time   time.Time
	Length int // of the whole packet, in bytes
	Data   []byte
}

const (
	// kernelBuffer is how many bytes of packets, and of what the kernel keeps about them, may wait
	// in the kernel. More are lost. It is 20 ms of a line of 1 Gbit/s.
	kernelBuffer = 2 << 20
	// batch is how many bytes of packets Next returns; up to one packet more.
	batch = 64 << 10
	// packetCost is what a packet costs beside its bytes.
	packetCost = 64
)

// Capture is a socket that packets come from. It is for one goroutine.
type Capture struct {
	link    string
	kind    LinkType
	conn    *socket.Conn
	raw     syscall.RawConn
	packet  []byte // the one that is read
	control []byte // what the kernel says about it
	dropped uint64
	err     error // why nothing more comes
}

// Open begins to record. It takes nothing that the filter would not have let through, and ends with
// Close.
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

// find looks for a link that is up. The error lists the others.
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
	return found, fmt.Errorf("%w; those that are up are %s", err, strings.Join(up, ", "))
}

// attach makes the socket one that packets of the link come to. Until the last call the socket is
// of no protocol, and gets none.
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
		// What it sends is what it receives: each packet would be there twice.
		options = append(options, struct{ level, option int }{unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING})
	}
	for _, s := range options {
		if err = c.conn.SetsockoptInt(s.level, s.option, 1); err != nil {
			return err
		}
	}
	if o.Promiscuous {
		// The kernel counts who wants it, and takes it back when the socket is closed.
		want := unix.PacketMreq{Ifindex: int32(at.Index), Type: unix.PACKET_MR_PROMISC}
		if err = c.conn.SetsockoptPacketMreq(unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &want); err != nil {
			return err
		}
	}
	if c.raw, err = c.conn.SyscallConn(); err != nil {
		return err
	}
	var all [2]byte // packet(7): in network byte order
	binary.BigEndian.PutUint16(all[:], unix.ETH_P_ALL)
	return c.conn.Bind(&unix.SockaddrLinklayer{Ifindex: at.Index, Protocol: binary.NativeEndian.Uint16(all[:])})
}

// linkType asks the kernel what the packets of the link begin with.
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
	return 0, fmt.Errorf("it is of type %d (linux/if_arp.h), and neither Ethernet nor a tunnel of IP packets", at.Hatype)
}

// LinkType is what each packet begins with.
func (c *Capture) LinkType() LinkType { return c.kind }

// Close ends the capture.
func (c *Capture) Close() error { return c.conn.Close() }

// Next waits for packets and returns those that are there, the oldest first. When the context has
// ended it still returns what had come by then, and after that the context's error.
func (c *Capture) Next(ctx context.Context) ([]Packet, error) {
	// Not by giving the socket the context: see package uevent.
	defer context.AfterFunc(ctx, func() {
		// fails only when the socket is closed, and then nobody waits
		_ = c.conn.SetReadDeadline(time.Unix(1, 0))
	})()
	var got []Packet
	if c.err == nil && ctx.Err() == nil {
		if err := c.raw.Read(func(fd uintptr) bool { return c.fill(int(fd), &got) }); err != nil && ctx.Err() == nil {
			return nil, fmt.Errorf("link %s: cannot capture: %w", c.link, err)
		}
	}
	if len(got) == 0 && c.err == nil { // the context has ended
		if err := c.conn.SetBPF(nothing); err != nil {
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

// fill takes the packets that are there, up to a batch. It is true when there is something to
// return.
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

// read makes a packet of what the kernel has written. It keeps none of it.
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
	// The kernel has taken the tag out; it belongs behind the two addresses.
	if c.kind == Ethernet && len(tag) > 0 && len(data) >= 12 {
		p.Data = slices.Concat(data[:12], tag, data[12:])
		p.Data = p.Data[:min(len(p.Data), len(c.packet))]
		p.Length += len(tag)
	} else {
		p.Data = bytes.Clone(data)
	}
	return p
}

// vlanTag is the VLAN tag that a packet came with, or none.
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

// Dropped returns how many packets that the filter let through have been lost so far, because Next
// was not called often enough.
func (c *Capture) Dropped() (uint64, error) {
	// since it was last asked
	since, err := c.conn.GetsockoptTpacketStats(unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return c.dropped, fmt.Errorf("link %s: cannot tell what was lost: %w", c.link, err)
	}
	c.dropped += uint64(since.Drops)
	return c.dropped, nil
}
