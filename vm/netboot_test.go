package vm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
)

// TestServeBoot checks that a firmware for PXE and a firmware for HTTP boot receive the location of
// the boot image in the format of their protocol, and that they can download the image.
func TestServeBoot(t *testing.T) {
	n := newTestNetwork(t, NetworkSpec{})
	offer := func(class string) *dhcpv4.DHCPv4 {
		t.Helper()
		request, err := dhcpv4.NewDiscovery(net.HardwareAddr{0x52, 0x54, 0x4f, 1, 2, 3}, dhcpv4.WithOption(dhcpv4.OptClassIdentifier(class)))
		if err != nil {
			t.Fatal(err)
		}
		reply, err := n.dhcpReply(request, lease{name: "bare", addr: n.Gateway().Next()})
		if err != nil {
			t.Fatal(err)
		}
		return reply
	}
	pxe, web := "PXEClient:Arch:00007:UNDI:003000", "HTTPClient:Arch:00016:UNDI:003000"
	if name := offer(pxe).BootFileNameOption(); name != "" {
		t.Errorf("the boot image %q is offered before the call of ServeBoot", name)
	}

	image := make([]byte, 200_001)
	if _, err := rand.NewChaCha8([32]byte{1}).Read(image); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(file, image, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := n.ServeBoot(file + "?"); err == nil {
		t.Error("ServeBoot accepts a file that does not exist")
	}
	if err := n.ServeBoot(file); err != nil {
		t.Fatal(err)
	}
	if name := offer("MSFT 5.0").BootFileNameOption(); name != "" {
		t.Errorf("a client that is not firmware is offered %q, want nothing", name)
	}
	bare := guest(t, n, "bare")
	r := offer(pxe)
	if got, err := fetchTFTP(bare, r.ServerIPAddr, r.BootFileNameOption()); err != nil || !bytes.Equal(got, image) {
		t.Errorf("the download by TFTP has %d bytes, %v, or another content", len(got), err)
	}
	r = offer(web)
	if r.ClassIdentifier() != "HTTPClient" {
		t.Errorf("the class of an offer for HTTP is %q", r.ClassIdentifier())
	}
	client := http.Client{Transport: &http.Transport{DialContext: bare.DialContext, DisableKeepAlives: true}, Timeout: 20 * time.Second}
	answer, err := client.Get(r.BootFileNameOption())
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if got, err := io.ReadAll(answer.Body); err != nil || !bytes.Equal(got, image) || answer.ContentLength != int64(len(image)) {
		t.Errorf("the download by HTTP has %d bytes, %v, or another length or content", len(got), err)
	}
}

// fetchTFTP reads a file like firmware: with the options blksize, tsize and windowsize (RFC 2347 to
// 2349, 7440). It ignores the tenth block once, as if the block were lost.
func fetchTFTP(h *Host, server net.IP, name string) ([]byte, error) {
	protocol := ipv4.ProtocolNumber
	if server.To4() == nil {
		protocol = ipv6.ProtocolNumber
	}
	conn, err := h.listenPacket(0, protocol)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return nil, err
	}
	const block, window = 1428, 4
	request := fmt.Appendf(nil, "\x00%c%s\x00octet\x00tsize\x000\x00blksize\x00%d\x00windowsize\x00%d\x00", tftpRead, name, block, window)
	if _, err := conn.WriteTo(request, &net.UDPAddr{IP: server, Port: tftpPort}); err != nil {
		return nil, err
	}
	var file []byte
	packet, lost := make([]byte, 2000), false
	for want := uint16(0); ; want++ {
		length, from, err := conn.ReadFrom(packet)
		if err != nil {
			return nil, err
		}
		kind, number := packet[1], binary.BigEndian.Uint16(packet[2:])
		switch {
		case want == 0 && kind == tftpOack:
			number = 0
		case want == 10 && !lost && kind == tftpData:
			lost = true
			want--
			continue
		case lost && kind == tftpData && number != want: // the server sends the window again
			want--
			continue
		case want > 0 && kind == tftpData && number == want:
			file = append(file, packet[4:length]...)
		default:
			return nil, fmt.Errorf("received the packet % x instead of block %d", packet[:min(length, 40)], want)
		}
		if want%window != 0 && length == block+4 {
			continue
		}
		if _, err := conn.WriteTo([]byte{0, tftpAck, byte(number >> 8), byte(number)}, from); err != nil {
			return nil, err
		}
		if want > 0 && length < block+4 {
			return file, nil
		}
	}
}
