//go:build linux

package lldp

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/kernel/rtnl/rtnltest"
)

// TestListen checks on a pair of links that the socket receives only frames of LLDP that are sent
// to the multicast address, and that it can send an announcement.
func TestListen(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	rtnltest.Veth(t, "a", "b")
	rtnltest.SetUp(t, "a", true)
	rtnltest.SetUp(t, "b", true)
	ours, err := net.InterfaceByName("a")
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := net.InterfaceByName("b")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := Listen(Link{Name: "a", Index: ours.Index, MAC: ours.HardwareAddr})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	other, err := packet.Listen(theirs, packet.Raw, unix.ETH_P_ALL, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	unicast := frameOf(chassis, tlv(typePort, "\x05unicast"), ttl, end)
	copy(unicast, ours.HardwareAddr)
	arp := frameOf(chassis, port, ttl, end)
	arp[12], arp[13] = 0x08, 0x06
	wanted := frameOf(chassis, port, ttl, end)
	got := repeat(t, conn, func() error {
		for _, frame := range [][]byte{unicast, arp, wanted} {
			if _, err := other.WriteTo(frame, &packet.Addr{HardwareAddr: net.HardwareAddr(frame[:6])}); err != nil {
				return err
			}
		}
		return nil
	}, func(frame []byte) bool { return true })
	if n, err := decode(got); err != nil || n.Port != least.Port {
		t.Errorf("the first frame: %+v, %v", n, err)
	}
	repeat(t, other, func() error {
		_, err := conn.WriteTo(encode(Announcement{Name: "m1", Link: "a", MAC: ours.HardwareAddr, TTL: announceTTL}), destination())
		return err
	}, func(frame []byte) bool {
		n, err := decode(frame)
		return err == nil && n.SystemName == "m1"
	})
}

// repeat calls send until a wanted frame arrives at the socket from, and returns this frame. It has
// to send several times, because the kernel drops frames until it has noticed the carrier of a new
// link.
func repeat(t *testing.T, from net.PacketConn, send func() error, wanted func([]byte) bool) []byte {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		if err := send(); err != nil {
			t.Fatal(err)
		}
		if err := from.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		for {
			buf := make([]byte, maxFrame)
			size, _, err := from.ReadFrom(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if wanted(buf[:size]) {
				return buf[:size]
			}
		}
	}
	t.Fatal("the wanted frame has not arrived within 30 s")
	return nil
}
