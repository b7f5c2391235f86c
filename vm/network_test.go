package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/beevik/ntp"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/miekg/dns"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

func newTestNetwork(t *testing.T, spec NetworkSpec) *Network {
	t.Helper()
	n, err := NewNetwork(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// guest returns a Host that stands for a machine.
func guest(t *testing.T, n *Network, name string) *Host {
	t.Helper()
	h, err := n.NewHost(name, netip.Addr{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// hostSockets returns this process's sockets of the host's network: TCP, UDP, ICMP, raw and packet.
func hostSockets(t *testing.T) []string {
	t.Helper()
	own := map[string]bool{}
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	inode := regexp.MustCompile(`^socket:\[(\d+)\]$`)
	for _, fd := range fds {
		target, _ := os.Readlink(fd) // fails if fd is closed meanwhile
		if m := inode.FindStringSubmatch(target); m != nil {
			own[m[1]] = true
		}
	}
	var found []string
	for _, kind := range []string{"tcp", "tcp6", "udp", "udp6", "icmp", "icmp6", "raw", "raw6", "packet"} {
		table, err := os.ReadFile("/proc/self/net/" + kind)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(table)) {
			fields := strings.Fields(line)
			if slices.ContainsFunc(fields, func(f string) bool { return own[f] }) {
				found = append(found, kind+" "+strings.Join(fields, " "))
			}
		}
	}
	return found
}

// TestNoWayOut sends packets from a guest to addresses outside the closed network. It checks that
// the guest gets no answer, that no packet reaches a listener on the host's loopback, and that no
// socket of the host's network is opened. The capture must show each attempt.
func TestNoWayOut(t *testing.T) {
	file := filepath.Join(t.TempDir(), "capture.pcap")
	n := newTestNetwork(t, NetworkSpec{Capture: file})
	g := guest(t, n, "cp1")
	loopback, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer loopback.Close()
	loopbackUDP, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer loopbackUDP.Close()
	heard := make(chan string, 8)
	go func() {
		if _, err := loopback.Accept(); err == nil {
			heard <- "a TCP connection"
		}
	}()
	go func() {
		if _, _, err := loopbackUDP.ReadFrom(make([]byte, 64)); err == nil {
			heard <- "a UDP packet"
		}
	}()
	tcpPort := loopback.Addr().(*net.TCPAddr).Port
	udpPort := loopbackUDP.LocalAddr().(*net.UDPAddr).Port
	// The loop waits until exactly the two sockets of this test are listed. At first, sockets of an
	// earlier test may still be open. A table of the kernel may also lack a socket, if the table
	// changes while it is read.
	before := hostSockets(t)
	for deadline := time.Now().Add(20 * time.Second); len(before) != 2; before = hostSockets(t) {
		if time.Now().After(deadline) {
			t.Fatalf("hostSockets does not list exactly the two open sockets: %d found:\n%s", len(before), strings.Join(before, "\n"))
		}
		<-time.After(10 * time.Millisecond)
	}

	var dials sync.WaitGroup
	for _, to := range []string{"192.0.2.1:80", "198.51.100.7:443", fmt.Sprintf("%s:%d", n.Gateway(), tcpPort), fmt.Sprintf("127.0.0.1:%d", tcpPort)} {
		dials.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
			defer cancel()
			if conn, err := g.DialContext(ctx, "tcp", to); err == nil {
				conn.Close()
				t.Errorf("a guest connected to %s", to)
			}
		})
	}
	dials.Wait()
	for _, to := range []string{"192.0.2.1:53", "192.0.2.1:123", fmt.Sprintf("%s:%d", n.Gateway(), udpPort)} {
		conn, err := g.DialContext(t.Context(), "udp", to)
		if err != nil {
			t.Fatal(err)
		}
		conn.Write([]byte("is anybody there?"))
		conn.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		if size, err := conn.Read(make([]byte, 64)); err == nil {
			t.Errorf("a guest got %d bytes from %s", size, to)
		}
		conn.Close()
	}
	// Two pings in raw frames to the gateway's hardware address: to an address outside and to the
	// host's loopback. A router would forward them.
	g.port.receive(icmpEcho(g, n.gateway.mac, netip.MustParseAddr("192.0.2.1")))
	g.port.receive(icmpEcho(g, n.gateway.mac, netip.MustParseAddr("127.0.0.1")))

	known := socketNames(before)
	after := hostSockets(t)
	if slices.ContainsFunc(socketNames(after), func(name string) bool { return !slices.Contains(known, name) }) {
		t.Errorf("sockets of the host were opened for a guest:\n%s", strings.Join(after, "\n"))
	}
	select {
	case what := <-heard:
		t.Errorf("the host's loopback got %s", what)
	default:
	}
	if _, err := n.CaptureFile(); err != nil {
		t.Fatal(err)
	}
	report, err := AnalyseCapture(file, n.Subnet())
	if err != nil {
		t.Fatal(err)
	}
	var tried []string
	for _, f := range report.Outside {
		if f.Src == n.Gateway() {
			t.Errorf("the gateway sent a packet to an address outside: %s", f)
		}
		tried = append(tried, fmt.Sprintf("%s %s %d", f.Protocol, f.Dst, f.DstPort))
	}
	for _, want := range []string{"tcp 192.0.2.1 80", "tcp 198.51.100.7 443", "udp 192.0.2.1 53", "udp 192.0.2.1 123", "icmp 192.0.2.1 0", "icmp 127.0.0.1 0"} {
		if !slices.Contains(tried, want) {
			t.Errorf("the capture does not show %s; it shows %v", want, tried)
		}
	}
}

// socketNames returns the kind and the addresses of each socket, without the variable fields of its
// line: position in the table, queues and timers.
func socketNames(lines []string) []string {
	var names []string
	for _, l := range lines {
		f := strings.Fields(l)
		names = append(names, f[0]+" "+strings.Join(f[2:min(4, len(f))], " "))
	}
	slices.Sort(names)
	return names
}

// icmpEcho returns an echo request without an ICMP checksum. A router would forward the request,
// because routers do not check this checksum.
func icmpEcho(from *Host, via macAddr, to netip.Addr) frame {
	f := newFrame(ethHeader + 20 + 8)
	b := f.eth()
	copy(b, via[:])
	copy(b[6:], from.mac[:])
	b[12] = 0x08 // IPv4
	ip := b[ethHeader:]
	ip[0], ip[3], ip[8], ip[9] = 0x45, 28, 64, 1
	copy(ip[12:], from.addr.AsSlice())
	copy(ip[16:], to.AsSlice())
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(ip[i])<<8 | uint32(ip[i+1])
	}
	sum = sum&0xffff + sum>>16
	sum = ^(sum&0xffff + sum>>16)
	ip[10], ip[11] = byte(sum>>8), byte(sum)
	ip[20] = 8
	return f
}

// TestGatewayHasNoForwarding checks that the gateway forwards no packets, and that no route of the
// gateway leads to a router.
func TestGatewayHasNoForwarding(t *testing.T) {
	n := newTestNetwork(t, NetworkSpec{})
	if on, err := n.gateway.stack.NICForwarding(nic, 0x0800); err != nil || on {
		t.Errorf("the gateway forwards packets: %v, %v", on, err)
	}
	for _, r := range n.gateway.stack.GetRouteTable() {
		if r.Gateway.Len() != 0 {
			t.Errorf("the gateway has a route to a router: %s", r)
		}
	}
}

// TestDHCP checks the options of a lease and a renewal. It also checks that the server sends a NAK
// or no answer if the test has set this, and rejects a request for an address of another network.
func TestDHCP(t *testing.T) {
	t.Parallel()
	n := newTestNetwork(t, NetworkSpec{Lease: time.Minute})
	addr, mac, err := n.reserve("cp1", netip.Addr{})
	if err != nil {
		t.Fatal(err)
	}
	// The machine has no address yet, so the stack needs 0.0.0.0 as the source address.
	h, err := newHost(n.sw, n.clock, "cp1", mac, netip.MustParsePrefix("0.0.0.0/0"), netip.Addr{}, IPv6Spec{})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	socket, err := h.ListenPacket(68)
	if err != nil {
		t.Fatal(err)
	}
	client, err := nclient4.NewWithConn(socket, mac[:], nclient4.WithTimeout(2*time.Second), nclient4.WithRetry(4))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()

	lease, err := client.Request(within(t, 20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	ack := lease.ACK
	if got, _ := netip.AddrFromSlice(ack.YourIPAddr.To4()); got != addr || addr.String() != "10.77.0.11" {
		t.Errorf("the leased address is %s, want %s", got, addr)
	}
	gateway := net.IP(n.Gateway().AsSlice())
	if len(ack.Router()) != 1 || !ack.Router()[0].Equal(gateway) || !ack.DNS()[0].Equal(gateway) || !ack.NTPServers()[0].Equal(gateway) ||
		ack.IPAddressLeaseTime(0) != time.Minute || ack.HostName() != "cp1" || ack.DomainName() != "orlop.test" || ack.SubnetMask().String() != "ffffff00" {
		t.Errorf("unexpected options: %s", ack.Summary())
	}
	// The server sends the answer to a renewal to the leased address.
	if err := h.setAddress(netip.PrefixFrom(addr, 24), n.Gateway()); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Renew(within(t, 20*time.Second), lease); err != nil {
		t.Errorf("the renewal failed: %v", err)
	}

	if err := n.SetMachineDHCP("cp1", DHCPNak); err != nil {
		t.Fatal(err)
	}
	var nak *nclient4.ErrNak
	if _, err := client.Request(within(t, 20*time.Second)); !errors.As(err, &nak) {
		t.Errorf("the answer in the mode DHCPNak is %v, want a NAK", err)
	}
	if err := n.SetMachineDHCP("cp1", DHCPIgnore); err != nil {
		t.Fatal(err)
	}
	// The context ends before the client repeats its request, because the test needs no
	// repetitions.
	if _, err := client.Request(within(t, time.Second)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the answer in the mode DHCPIgnore is %v, want no answer", err)
	}
	if err := n.SetMachineDHCP("cp1", DHCPAnswer); err != nil {
		t.Fatal(err)
	}
	n.SetDHCP(false)
	if _, err := client.Request(within(t, time.Second)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the answer of a server that is off is %v, want no answer", err)
	}
	n.SetDHCP(true)
	if _, err := client.Request(within(t, 20*time.Second)); err != nil {
		t.Errorf("the request after the server is on again failed: %v", err)
	}
	// The server rejects a request for an address of another network (RFC 2131, section 4.3.2,
	// INIT-REBOOT).
	request, err := dhcpv4.New(dhcpv4.WithHwAddr(mac[:]), dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest),
		dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(net.IPv4(192, 0, 2, 9))))
	if err != nil {
		t.Fatal(err)
	}
	reply, err := n.dhcpReply(request, *n.leases[mac])
	if err != nil || reply.MessageType() != dhcpv4.MessageTypeNak {
		t.Errorf("the answer to a request for an address of another network is %v, %v, want a NAK", reply, err)
	}
}

// TestDNS checks the answers of the gateway for names of machines, configured names and other
// names, by UDP and TCP.
func TestDNS(t *testing.T) {
	n := newTestNetwork(t, NetworkSpec{Names: map[string][]netip.Addr{"kubernetes.example": {netip.MustParseAddr("10.77.0.11")}}})
	g := guest(t, n, "cp1")
	for _, network := range []string{"udp", "tcp"} {
		for _, c := range []struct {
			name   string
			kind   uint16
			rcode  int
			answer string
		}{
			{"cp1.orlop.test.", dns.TypeA, dns.RcodeSuccess, "10.77.0.11"},
			{"CP1.Orlop.Test.", dns.TypeA, dns.RcodeSuccess, "10.77.0.11"},
			{"cp1.", dns.TypeA, dns.RcodeSuccess, "10.77.0.11"},
			{"gateway.orlop.test.", dns.TypeA, dns.RcodeSuccess, "10.77.0.1"},
			{"kubernetes.example.", dns.TypeA, dns.RcodeSuccess, "10.77.0.11"},
			{"cp1.orlop.test.", dns.TypeAAAA, dns.RcodeSuccess, ""},
			{"cp9.orlop.test.", dns.TypeA, dns.RcodeNameError, ""},
			{"localhost.", dns.TypeA, dns.RcodeRefused, ""}, // the host's resolver would answer this query
			{"www.example.org.", dns.TypeA, dns.RcodeRefused, ""},
		} {
			conn, err := g.DialContext(within(t, 5*time.Second), network, n.Gateway().String()+":53")
			if err != nil {
				t.Fatal(err)
			}
			client := &dns.Client{Net: network, Timeout: 5 * time.Second}
			reply, _, err := client.ExchangeWithConn(new(dns.Msg).SetQuestion(c.name, c.kind), &dns.Conn{Conn: conn})
			conn.Close()
			if err != nil {
				t.Errorf("%s, query for %s: %v", network, c.name, err)
				continue
			}
			var answer string
			if len(reply.Answer) > 0 {
				answer = reply.Answer[0].(*dns.A).A.String()
			}
			if reply.Rcode != c.rcode || answer != c.answer {
				t.Errorf("%s, query for %s: the answer is %s %q, want %s %q", network, c.name, dns.RcodeToString[reply.Rcode], answer, dns.RcodeToString[c.rcode], c.answer)
			}
		}
	}
}

// TestNTP checks that the time server of the gateway shows the configured offset of one hour.
func TestNTP(t *testing.T) {
	n := newTestNetwork(t, NetworkSpec{ClockOffset: -time.Hour})
	g := guest(t, n, "cp1")
	response, err := ntp.QueryWithOptions(n.Gateway().String(), ntp.QueryOptions{Timeout: 5 * time.Second,
		Dialer: func(_, to string) (net.Conn, error) { return g.DialContext(t.Context(), "udp", to) }})
	if err != nil {
		t.Fatal(err)
	}
	if err := response.Validate(); err != nil {
		t.Error(err)
	}
	if off := response.ClockOffset + time.Hour; off.Abs() > 5*time.Second {
		t.Errorf("the offset of the time server is %s, want -1h", response.ClockOffset)
	}
}

// TestForward checks that a forward transports data in both directions, and that its end closes its
// connections.
func TestForward(t *testing.T) {
	n := newTestNetwork(t, NetworkSpec{})
	g := guest(t, n, "cp1")
	listener, err := g.Listen(50000)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				io.Copy(conn, conn) // ends when the client has sent all its data
			}()
		}
	}()
	f, err := n.Forward(0, "cp1:50000")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(f.Addr, "127.0.0.1:") {
		t.Errorf("the forward listens on %s", f.Addr)
	}
	conn, err := net.Dial("tcp4", f.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	sent := strings.Repeat("deck ", 1<<18) // larger than any buffer on the path
	go func() {
		io.WriteString(conn, sent)
		conn.(*net.TCPConn).CloseWrite()
	}()
	got, err := io.ReadAll(conn)
	if err != nil || string(got) != sent {
		t.Errorf("the echo of %d bytes has %d bytes, %v, or another content", len(sent), len(got), err)
	}
	// An open connection does not delay the end of its forward.
	idle, err := net.Dial("tcp4", f.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	idle.SetDeadline(time.Now().Add(20 * time.Second))
	io.WriteString(idle, "x")
	if _, err := io.ReadFull(idle, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if _, err := idle.Read(make([]byte, 1)); err == nil {
		t.Error("the connection remains open after the end of its forward")
	}
	if len(n.Forwards()) != 0 {
		t.Error("the forward is still listed")
	}
}

// TestAddressThatMoves checks that a host updates its neighbor entry for an address when another
// machine announces this address.
func TestAddressThatMoves(t *testing.T) {
	t.Parallel()
	n := newTestNetwork(t, NetworkSpec{})
	asks, one, two := guest(t, n, "asks"), guest(t, n, "one"), guest(t, n, "two")
	moving := netip.PrefixFrom(netip.MustParseAddr("10.77.0.9"), 24)
	serve := func(h *Host) {
		t.Helper()
		p := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: tcpip.AddressWithPrefix{Address: tcpip.AddrFrom4(moving.Addr().As4()), PrefixLen: moving.Bits()}}
		if err := h.stack.AddProtocolAddress(nic, p, stack.AddressProperties{}); err != nil {
			t.Fatal(err)
		}
		l, err := gonet.ListenTCP(h.stack, tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFrom4(moving.Addr().As4()), Port: 80}, ipv4.ProtocolNumber)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				io.WriteString(conn, h.Name())
				conn.Close()
			}
		}()
	}
	answers := func(limit time.Duration) string {
		conn, err := asks.DialContext(within(t, limit), "tcp", "10.77.0.9:80")
		if err != nil {
			return err.Error()
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(limit))
		text, err := io.ReadAll(conn)
		if err != nil {
			return err.Error()
		}
		return string(text)
	}
	serve(one)
	if got := answers(10 * time.Second); got != "one" {
		t.Fatalf("before the address moves, the answer is %s, want one", got)
	}
	one.Close()
	serve(two)
	if got := answers(500 * time.Millisecond); got == "two" {
		t.Fatal("the neighbor entry changed without an announcement, so this test cannot check the effect of an announcement")
	}
	f := newFrame(ethHeader + header.ARPSize)
	eth := header.Ethernet(f.eth())
	eth.Encode(&header.EthernetFields{SrcAddr: tcpip.LinkAddress(two.mac[:]), DstAddr: header.EthernetBroadcastAddress, Type: header.ARPProtocolNumber})
	arp := header.ARP(eth[ethHeader:])
	arp.SetIPv4OverEthernet()
	arp.SetOp(header.ARPRequest)
	copy(arp.HardwareAddressSender(), two.mac[:])
	copy(arp.ProtocolAddressSender(), moving.Addr().AsSlice())
	copy(arp.ProtocolAddressTarget(), moving.Addr().AsSlice())
	two.port.receive(f)
	if got := answers(3 * time.Second); got != "two" {
		t.Errorf("after the announcement, the answer is %s, want two", got)
	}
}
