//go:build linux

package capture

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/mdlayher/packet"
	"github.com/vishvananda/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/kernel/rtnl/rtnltest"
)

// limit is the timeout of each operation of these tests.
const limit = 10 * time.Second

// wire is a link, "c0", and a sender at its other end.
type wire struct {
	other *rtnltest.Namespace
	send  func(frame []byte)
}

func newWire(t *testing.T) wire {
	t.Helper()
	w := wire{other: rtnltest.NewOther(t)}
	rtnltest.Veth(t, "c0", "s0")
	w.other.MoveLink(t, "s0")
	rtnltest.SetUp(t, "c0", true)
	var conn *packet.Conn
	var err error
	w.other.Do(func() {
		var link *net.Interface
		if link, err = net.InterfaceByName("s0"); err == nil {
			conn, err = packet.Listen(link, packet.Raw, 0, nil)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	w.send = func(frame []byte) {
		if _, err := conn.WriteTo(frame, &packet.Addr{HardwareAddr: theirs}); err != nil {
			t.Fatalf("cannot send: %v", err)
		}
	}
	// The queue of a link starts a moment after the link is up. Packets that are sent earlier are
	// lost without an error.
	for deadline := time.Now().Add(limit); !w.carries(t); {
		if time.Now().After(deadline) {
			t.Fatalf("no packet arrives within %v", limit)
		}
	}
	return w
}

// carries sends one packet and reports whether it arrived.
func (w wire) carries(t *testing.T) bool {
	t.Helper()
	c, err := Open("c0", Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	w.send(frames(t)[0].data)
	soon, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	for {
		packets, err := c.Next(soon)
		if err != nil {
			return false
		}
		if slices.ContainsFunc(packets, isOurs) {
			return true
		}
	}
}

func open(t *testing.T, link string, o Options) *Capture {
	t.Helper()
	c, err := Open(link, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// The function until reads packets up to the first packet for which last returns true. It returns
// the packets for which wanted returns true.
func until(t *testing.T, c *Capture, wanted, last func(Packet) bool) []Packet {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var got []Packet
	for {
		packets, err := c.Next(ctx)
		if err != nil {
			t.Fatalf("after %d packets: %v", len(got), err)
		}
		for _, p := range packets {
			if wanted(p) {
				got = append(got, p)
			}
			if last(p) {
				return got
			}
		}
	}
}

// rest ends the capture. It returns the received packets for which wanted returns true.
func rest(t *testing.T, c *Capture, wanted func(Packet) bool) []Packet {
	t.Helper()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	var got []Packet
	for {
		packets, err := c.Next(ended)
		if errors.Is(err, context.Canceled) {
			return got
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range packets {
			if wanted(p) {
				got = append(got, p)
			}
		}
	}
}

// isOurs reports whether the test sent a frame. The kernel sends other frames on a new link.
func isOurs(p Packet) bool { return len(p.Data) > 12 && bytes.Equal(p.Data[6:12], ours) }

// TestCasesKernel sends every frame over a wire once for each case, and checks which frames the
// filter passes in the kernel.
func TestCasesKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	w := newWire(t)
	all := frames(t)
	for _, c := range cases {
		// witness is opened first, because the kernel delivers a packet to the newest socket first.
		// So when witness has the last frame, filtered has received all frames.
		witness := open(t, "c0", Options{})
		filtered := open(t, "c0", Options{Filter: compile(t, c.filter)})
		begun := time.Now()
		for _, f := range all {
			w.send(f.data)
		}
		last := all[len(all)-1].data
		until(t, witness, isOurs, func(p Packet) bool { return bytes.Equal(p.Data, last) })
		var names []string
		for _, p := range rest(t, filtered, isOurs) {
			for _, f := range all {
				if bytes.Equal(p.Data, f.data) {
					names = append(names, f.name)
				}
			}
			if p.Length != len(p.Data) || p.Time.Before(begun.Add(-time.Second)) || p.Time.After(time.Now().Add(time.Second)) {
				t.Errorf("%q: %d bytes of %d at %v, sent after %v", c.filter, len(p.Data), p.Length, p.Time, begun)
			}
		}
		if got := strings.Join(names, " "); got != c.frames {
			t.Errorf("%q passes %q, want %q", c.filter, got, c.frames)
		}
		witness.Close()
		filtered.Close()
	}
}

// TestTagKernel checks that a captured packet contains the VLAN tag that the kernel removed, if the
// maximum length of captured packets includes the tag.
func TestTagKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	w := newWire(t)
	frame := tagged(frames(t)[0].data)
	for _, snaplen := range []int{0, 20, 14, 8} {
		c := open(t, "c0", Options{Snaplen: snaplen, Filter: compile(t, "tcp port 80")})
		w.send(frame)
		any := func(Packet) bool { return true }
		p := until(t, c, any, any)[0]
		want := frame
		if snaplen > 0 {
			want = frame[:snaplen]
		}
		if !bytes.Equal(p.Data, want) || snaplen != 8 && p.Length != len(frame) {
			t.Errorf("snaplen %d: %x, %d bytes in all; want %x, %d", snaplen, p.Data, p.Length, want, len(frame))
		}
		c.Close()
	}
}

// TestPromiscuousKernel checks that the link accepts packets for other addresses during a
// promiscuous capture, and only then.
func TestPromiscuousKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	newWire(t)
	for _, want := range []int{0, 1} {
		c := open(t, "c0", Options{Promiscuous: want == 1})
		link, err := netlink.LinkByName("c0")
		if err != nil || link.Attrs().Promisc != want {
			t.Errorf("%+v, %v: want a promiscuity count of %d", link, err, want)
		}
		c.Close()
	}
	if link, err := netlink.LinkByName("c0"); err != nil || link.Attrs().Promisc != 0 {
		t.Errorf("after the captures: %+v, %v, want a promiscuity count of 0", link, err)
	}
}

// talk starts a TCP server on a loopback port, sends a line to the server, and receives the line
// back.
func talk(t *testing.T, port int, line string) {
	t.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if conn, err := l.Accept(); err == nil {
			_, _ = io.Copy(conn, conn)
			conn.Close()
		}
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err = io.WriteString(conn, line); err == nil {
		_, err = io.ReadFull(conn, make([]byte, len(line)))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestLoopbackKernel checks that a capture on the loopback contains each packet once, and no
// packets of the API's port.
func TestLoopbackKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	rtnltest.SetUp(t, "lo", true)
	c := open(t, "lo", Options{})
	talk(t, 50000, "secret")
	talk(t, 50001, "hello")
	has := func(what string) func(Packet) bool {
		return func(p Packet) bool { return bytes.Contains(p.Data, []byte(what)) }
	}
	got := rest(t, c, func(Packet) bool { return true })
	counted := map[string]int{}
	for _, p := range got {
		for _, what := range []string{"secret", "hello"} {
			if has(what)(p) {
				counted[what]++
			}
		}
		if port := []byte{50000 >> 8, 50000 & 0xff}; len(p.Data) > 38 && (bytes.Equal(p.Data[34:36], port) || bytes.Equal(p.Data[36:38], port)) {
			t.Errorf("a packet of the API's port: %x", p.Data)
		}
	}
	if counted["hello"] != 2 || counted["secret"] != 0 {
		t.Errorf("of %d packets, the lines are in %v; want hello in 2, one in each direction", len(got), counted)
	}
}

// TestSlowReaderKernel checks that packets that do not fit into the buffer are dropped and counted,
// and use no memory.
func TestSlowReaderKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	rtnltest.SetUp(t, "lo", true)
	c := open(t, "lo", Options{Filter: compile(t, "udp")})
	conn, err := net.Dial("udp", "127.0.0.1:9")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const sent = 10000
	for range sent {
		// No process listens on the port; the kernel can report that for the previous packet.
		if _, err := conn.Write(make([]byte, 1000)); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
			t.Fatal(err)
		}
	}
	packets, err := c.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	size := 0
	for _, p := range packets {
		size += len(p.Data)
	}
	if size > batch+MaxSnaplen {
		t.Errorf("the first batch has %d bytes", size)
	}
	got := len(packets) + len(rest(t, c, func(Packet) bool { return true }))
	dropped, err := c.Dropped()
	if err != nil || dropped == 0 || got == 0 {
		t.Fatalf("%d packets, %d dropped, %v", got, dropped, err)
	}
	// The packets of rejected writes were not sent.
	if all := uint64(got) + dropped; all > sent || all < sent/2 {
		t.Errorf("%d packets and %d dropped of %d", got, dropped, sent)
	}
	if again, err := c.Dropped(); err != nil || again != dropped {
		t.Errorf("%d dropped, and later %d, %v", dropped, again, err)
	}
}

// TestRefusedKernel checks the errors of Open, and the error of Next after the link went down.
func TestRefusedKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	newWire(t)
	rtnltest.Veth(t, "off", "peer")
	for _, c := range []struct {
		link string
		o    Options
		is   error
		want string
	}{
		{"nope", Options{}, ErrNoLink, "link nope: cannot capture: there is no such link; links that are up: c0"},
		{"off", Options{}, nil, "link off: cannot capture: it is down; links that are up: c0"},
		{"c0", Options{Filter: []bpf.RawInstruction{{Op: 0xffff}}}, ErrFilter, "link c0: cannot capture: the kernel refuses the filter"},
		{"c0", Options{Filter: []bpf.RawInstruction{{Op: 0x05, K: 9}}}, ErrFilter, "the kernel refuses the filter"},
		{"c0", Options{Snaplen: MaxSnaplen + 1}, nil, "packets of 262145 bytes"},
	} {
		open, err := Open(c.link, c.o)
		if err == nil {
			open.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: %v; want %q", c.link, err, c.want)
		}
	}
	c := open(t, "c0", Options{Filter: compile(t, "arp")})
	rtnltest.SetUp(t, "c0", false)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if _, err := c.Next(ctx); err == nil || err.Error() != "link c0: the capture ended: the link went down" {
		t.Errorf("Next on a link that goes down: %v", err)
	}
}

// TestTunnelKernel checks that packets of a tunnel begin with the IP header, and that filters also
// work on tunnels.
func TestTunnelKernel(t *testing.T) {
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skip("needs /dev/net/tun: the module tun is not loaded")
	}
	if !rtnltest.Isolate(t) {
		return
	}
	tun := newTun(t, "tun0")
	rtnltest.SetUp(t, "tun0", true)
	c := open(t, "tun0", Options{Filter: compile(t, "udp port 53")})
	if c.LinkType() != IP {
		t.Errorf("link type %d", c.LinkType())
	}
	var sent []byte
	for _, f := range frames(t) {
		if f.name == "dns4" || f.name == "web4" {
			if _, err := tun.Write(f.data[14:]); err != nil {
				t.Fatal(err)
			}
		}
		if f.name == "dns4" {
			sent = f.data[14:]
		}
	}
	any := func(Packet) bool { return true }
	if p := until(t, c, any, any)[0]; !bytes.Equal(p.Data, sent) {
		t.Errorf("captured %x, want %x", p.Data, sent)
	}
	if more := rest(t, c, any); len(more) > 0 {
		t.Errorf("%d more packets passed the filter", len(more))
	}
}

// newTun makes a tunnel with this process at its other end (linux/if_tun.h).
func newTun(t *testing.T, name string) *os.File {
	t.Helper()
	file, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	var request [40]byte
	copy(request[:], name)
	binary.NativeEndian.PutUint16(request[16:], unix.IFF_TUN|unix.IFF_NO_PI)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, file.Fd(), unix.TUNSETIFF, uintptr(unsafe.Pointer(&request[0]))); errno != 0 {
		t.Fatalf("cannot make a tunnel: %v", errno)
	}
	return file
}
