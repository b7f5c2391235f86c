package vm

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/beevik/ntp"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
	"github.com/miekg/dns"
)

// TestIPv6Services checks that the DNS and NTP servers of the gateway answer by IPv6, and that
// hosts reach each other by IPv6.
func TestIPv6Services(t *testing.T) {
	n := newTestNetwork(t, NetworkSpec{IPv6: IPv6Spec{Mode: IPv6Stateful, Only: true}})
	a, b := guest(t, n, "a"), guest(t, n, "b")
	gateway := netip.MustParseAddr("fd00:77::1")
	if n.Gateway() != gateway || n.Six() != netip.MustParsePrefix("fd00:77::/64") || a.Six() != n.SixOf("a") {
		t.Errorf("the gateway is %v, the network %v, and a has the addresses %v and %v", n.Gateway(), n.Six(), a.Six(), n.SixOf("a"))
	}
	conn, err := a.DialContext(within(t, 10*time.Second), "udp", netip.AddrPortFrom(gateway, 53).String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	query := func(kind uint16) []dns.RR {
		t.Helper()
		c := dns.Client{Timeout: 10 * time.Second}
		answer, _, err := c.ExchangeWithConn(new(dns.Msg).SetQuestion("b.orlop.test.", kind), &dns.Conn{Conn: conn})
		if err != nil {
			t.Fatal(err)
		}
		return answer.Answer
	}
	if got := query(dns.TypeAAAA); len(got) != 1 || !got[0].(*dns.AAAA).AAAA.Equal(b.Six().AsSlice()) {
		t.Errorf("DNS returns the IPv6 addresses %v for b, want %v", got, b.Six())
	}
	if got := query(dns.TypeA); len(got) != 0 {
		t.Errorf("DNS returns the IPv4 addresses %v for b, want none", got)
	}
	answer, err := ntp.QueryWithOptions("fd00:77::1", ntp.QueryOptions{Timeout: 10 * time.Second, Dialer: func(_, remote string) (net.Conn, error) {
		return a.DialContext(t.Context(), "udp", remote)
	}})
	if err != nil || answer.Stratum != 1 {
		t.Errorf("the answer of the NTP server is %+v, %v, want stratum 1", answer, err)
	}
	l, err := b.Listen(80)
	if err != nil {
		t.Fatal(err)
	}
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.RemoteAddr) }))
	client := http.Client{Transport: &http.Transport{DialContext: a.DialContext, DisableKeepAlives: true}, Timeout: 10 * time.Second}
	got, err := client.Get("http://b/")
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	if from, err := io.ReadAll(got.Body); err != nil || !strings.HasPrefix(string(from), "["+a.Six().String()+"]") {
		t.Errorf("the address of the client that b sees is %s, %v; want %v", from, err, a.Six())
	}
}

// TestRouter checks the router advertisement that answers a solicitation, in each mode.
func TestRouter(t *testing.T) {
	for mode, want := range map[IPv6Mode]struct {
		flags   uint8
		auto    bool // machines derive addresses from the prefix
		options []layers.ICMPv6Opt
	}{
		IPv6Advertised: {0, true, []layers.ICMPv6Opt{layers.ICMPv6OptSourceAddress, layers.ICMPv6OptPrefixInfo, 25, 31}},
		IPv6Stateless:  {0x40, true, []layers.ICMPv6Opt{layers.ICMPv6OptSourceAddress, layers.ICMPv6OptPrefixInfo}},
		IPv6Stateful:   {0xc0, false, []layers.ICMPv6Opt{layers.ICMPv6OptSourceAddress, layers.ICMPv6OptPrefixInfo}},
	} {
		t.Run(string(mode), func(t *testing.T) {
			n := newTestNetwork(t, NetworkSpec{IPv6: IPv6Spec{Mode: mode}})
			heard := make(chan *layers.ICMPv6RouterAdvertisement, 16)
			p := n.sw.attach("probe", func(frames []frame) error {
				for _, f := range frames {
					packet := gopacket.NewPacket(slices.Clone(f.eth()), layers.LayerTypeEthernet, gopacket.Default)
					if ra, ok := packet.Layer(layers.LayerTypeICMPv6RouterAdvertisement).(*layers.ICMPv6RouterAdvertisement); ok {
						heard <- ra
					}
				}
				return nil
			})
			defer p.close()
			p.receive(solicitation(t))
			select {
			case ra := <-heard:
				var kinds []layers.ICMPv6Opt
				auto := false
				for _, o := range ra.Options {
					kinds = append(kinds, o.Type)
					auto = auto || o.Type == layers.ICMPv6OptPrefixInfo && o.Data[1]&0x40 != 0
				}
				slices.Sort(kinds) // the library writes options in the reverse order
				if ra.Flags != want.flags || ra.RouterLifetime != 1800 || !slices.Equal(kinds, want.options) || auto != want.auto {
					t.Errorf("the flags, the lifetime or the options of the advertisement are wrong: %+v", ra)
				}
			case <-time.After(20 * time.Second):
				t.Fatal("the router sent no advertisement")
			}
		})
	}
}

// solicitation returns the frame of a router solicitation.
func solicitation(t *testing.T) frame {
	t.Helper()
	mac := net.HardwareAddr{0x52, 0x54, 0x4f, 9, 9, 9}
	ip := &layers.IPv6{Version: 6, NextHeader: layers.IPProtocolICMPv6, HopLimit: 255, SrcIP: net.ParseIP("fe80::9"), DstIP: net.IPv6linklocalallrouters}
	message := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeRouterSolicitation, 0)}
	if err := message.SetNetworkLayerForChecksum(ip); err != nil {
		t.Fatal(err)
	}
	b := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		&layers.Ethernet{SrcMAC: mac, DstMAC: net.HardwareAddr{0x33, 0x33, 0, 0, 0, 2}, EthernetType: layers.EthernetTypeIPv6}, ip, message, &layers.ICMPv6RouterSolicitation{})
	if err != nil {
		t.Fatal(err)
	}
	f := newFrame(len(b.Bytes()))
	copy(f.eth(), b.Bytes())
	return f
}

// TestDHCP6 checks the answers of the DHCPv6 server to several kinds of messages, in the stateful
// and in the stateless mode.
func TestDHCP6(t *testing.T) {
	for _, test := range []struct {
		mode     IPv6Mode
		kind     dhcpv6.MessageType
		modifier dhcpv6.Modifier
		want     string
	}{
		{IPv6Stateful, dhcpv6.MessageTypeSolicit, dhcpv6.WithIAID([4]byte{1}), "ADVERTISE fd00:77::5054:4fff:fe4d:b settings"},
		{IPv6Stateful, dhcpv6.MessageTypeSolicit, dhcpv6.WithRapidCommit, "REPLY rapid settings"},
		{IPv6Stateful, dhcpv6.MessageTypeRenew, dhcpv6.WithIAPD([4]byte{1}), "REPLY fd00:78:0:b0::/60 settings"},
		{IPv6Stateless, dhcpv6.MessageTypeSolicit, dhcpv6.WithIAID([4]byte{1}), "ADVERTISE NoAddrsAvail settings"},
		{IPv6Stateless, dhcpv6.MessageTypeInformationRequest, func(dhcpv6.DHCPv6) {}, "REPLY settings"},
		{IPv6Stateful, dhcpv6.MessageTypeConfirm, dhcpv6.WithIANA(dhcpv6.OptIAAddress{IPv6Addr: net.ParseIP("fd00:77::5")}), "REPLY Success"},
		{IPv6Stateful, dhcpv6.MessageTypeConfirm, dhcpv6.WithIANA(dhcpv6.OptIAAddress{IPv6Addr: net.ParseIP("fd00:9::5")}), "REPLY NotOnLink"},
		{IPv6Stateful, dhcpv6.MessageTypeDecline, func(dhcpv6.DHCPv6) {}, "REPLY"},
		{IPv6Stateful, dhcpv6.MessageTypeReconfigure, func(dhcpv6.DHCPv6) {}, ""},
	} {
		n := newTestNetwork(t, NetworkSpec{IPv6: IPv6Spec{Mode: test.mode, Delegated: netip.MustParsePrefix("fd00:78::/48")}})
		_, mac, err := n.reserve("cp1", netip.Addr{})
		if err != nil {
			t.Fatal(err)
		}
		m, err := dhcpv6.NewMessage(dhcpv6.WithClientID(&dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: mac[:]}), test.modifier)
		if err != nil {
			t.Fatal(err)
		}
		m.MessageType = test.kind
		if got := describe6(router{n}.dhcp6Reply(m, mac)); got != test.want {
			t.Errorf("%s, %v: the answer is %q, want %q", test.mode, test.kind, got, test.want)
		}
	}
}

// describe6 returns a short description of an answer of the DHCPv6 server; empty if m is nil.
func describe6(m *dhcpv6.Message) string {
	if m == nil {
		return ""
	}
	out := []string{m.Type().String()}
	for _, o := range m.Options.Options {
		switch o := o.(type) {
		case *dhcpv6.OptIANA:
			if s := o.Options.Status(); s != nil {
				out = append(out, s.StatusCode.String())
			}
			for _, a := range o.Options.Addresses() {
				out = append(out, a.IPv6Addr.String())
			}
		case *dhcpv6.OptIAPD:
			for _, p := range o.Options.Prefixes() {
				out = append(out, p.Prefix.String())
			}
		case *dhcpv6.OptStatusCode:
			out = append(out, o.StatusCode.String())
		case *dhcpv6.OptNTPServer:
			out = append(out, "settings")
		default:
			if o.Code() == dhcpv6.OptionRapidCommit {
				out = append(out, "rapid")
			}
		}
	}
	return strings.Join(out, " ")
}

// TestServeBoot6 checks the location of the boot image for each kind of firmware, and its download
// by HTTP and TFTP over IPv6.
func TestServeBoot6(t *testing.T) {
	n := newTestNetwork(t, NetworkSpec{IPv6: IPv6Spec{Mode: IPv6Stateful, Only: true}})
	image := bytes.Repeat([]byte("boot image "), 20000)
	file := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(file, image, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := n.ServeBoot(file); err != nil {
		t.Fatal(err)
	}
	offer := func(class string) *dhcpv6.Message {
		m, err := dhcpv6.NewMessage(dhcpv6.WithClientID(&dhcpv6.DUIDLL{}), dhcpv6.WithOption(&dhcpv6.OptVendorClass{EnterpriseNumber: firmwareNumber, Data: [][]byte{[]byte(class)}}))
		if err != nil {
			t.Fatal(err)
		}
		return router{n}.dhcp6Reply(m, macAddr{})
	}
	if url := offer("MSFT 5.0").Options.BootFileURL(); url != "" {
		t.Errorf("a client that is not firmware is offered %q, want nothing", url)
	}
	if url := offer("PXEClient:Arch:00007:UNDI:003016").Options.BootFileURL(); url != "tftp://[fd00:77::1]/boot.efi" {
		t.Errorf("PXE is offered %q", url)
	}
	web := offer("HTTPClient:Arch:00016:UNDI:003016")
	if class := web.Options.VendorClass(firmwareNumber); len(class) != 1 || string(class[0]) != "HTTPClient" {
		t.Errorf("the class of an offer for HTTP is %q", class)
	}
	bare := guest(t, n, "bare")
	client := http.Client{Transport: &http.Transport{DialContext: bare.DialContext, DisableKeepAlives: true}, Timeout: 20 * time.Second}
	answer, err := client.Get(web.Options.BootFileURL())
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if got, err := io.ReadAll(answer.Body); err != nil || !bytes.Equal(got, image) {
		t.Errorf("the download by HTTP has %d bytes, %v, or another content", len(got), err)
	}
	if got, err := fetchTFTP(bare, net.ParseIP("fd00:77::1"), bootName); err != nil || !bytes.Equal(got, image) {
		t.Errorf("the download by TFTP has %d bytes, %v, or another content", len(got), err)
	}
}

// TestBadIPv6Spec checks the errors of invalid specifications.
func TestBadIPv6Spec(t *testing.T) {
	for want, spec := range map[string]IPv6Spec{
		"needs a mode":                      {Only: true},
		"none of":                           {Mode: "dhcp"},
		"not an IPv6 network of /64":        {Mode: IPv6Stateful, Prefix: netip.MustParsePrefix("fd00::/63")},
		"not an IPv6 network of /48 to /56": {Mode: IPv6Stateful, Delegated: netip.MustParsePrefix("10.0.0.0/8")},
	} {
		if n, err := NewNetwork(NetworkSpec{IPv6: spec}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("NewNetwork with %+v returns %v, %v, want an error with %q", spec, n, err, want)
		}
	}
}
