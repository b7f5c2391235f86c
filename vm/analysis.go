package vm

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// Flow summarizes the frames of a capture with the same addresses, protocol and destination port.
// Source ports do not distinguish flows, because each new connection has another source port.
type Flow struct {
	Src      netip.Addr `json:"src"`
	Dst      netip.Addr `json:"dst"`
	SrcMAC   string     `json:"srcMAC"`
	DstMAC   string     `json:"dstMAC"`
	Protocol string     `json:"protocol"` // "arp", "tcp", "udp", "icmp", … or the number
	DstPort  uint16     `json:"dstPort,omitempty"`
	// Packets is the number of frames, Bytes the sum of their lengths, and First the time of the
	// first frame.
	Packets int       `json:"packets"`
	Bytes   int       `json:"bytes"`
	First   time.Time `json:"first"`
}

func (f Flow) String() string {
	to := f.Dst.String()
	if f.DstPort != 0 {
		to = netip.AddrPortFrom(f.Dst, f.DstPort).String()
	}
	return fmt.Sprintf("%s %s (%s) → %s (%s): %d packets, %d bytes, first at %s",
		f.Protocol, f.Src, f.SrcMAC, to, f.DstMAC, f.Packets, f.Bytes, f.First.Format("15:04:05.000"))
}

// CaptureReport sorts the frames of a capture by destination.
type CaptureReport struct {
	Frames int `json:"frames"`
	// Inside is the number of frames to unicast addresses in the ranges of the closed network
	// (argument inside of AnalyseCapture).
	Inside int `json:"inside"`
	// Outside are the flows to all other unicast addresses, and the ARP requests for these
	// addresses. Each flow shows an attempt to reach an address outside the closed network.
	Outside []Flow `json:"outside"`
	// Group are the flows to multicast and broadcast addresses. These frames do not leave the link.
	Group []Flow `json:"group"`
	// Other is the number of frames of each EtherType other than IP and ARP, and of malformed
	// frames.
	Other map[string]int `json:"other,omitempty"`
}

// AnalyseCapture reads the capture in the file path. inside are the ranges of the closed network:
// its subnet and, if frames for them can be in the capture, the ranges of pods and services.
// Link-local IPv6 addresses always count as inside, because no router forwards them.
func AnalyseCapture(path string, inside ...netip.Prefix) (*CaptureReport, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	defer file.Close()
	reader, err := pcapgo.NewReader(bufio.NewReaderSize(file, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("capture: cannot read %s: %w", path, err)
	}
	a := &analysis{inside: inside, outside: map[Flow]*Flow{}, group: map[Flow]*Flow{},
		report: &CaptureReport{Other: map[string]int{}}}
	for {
		data, info, err := reader.ReadPacketData()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break // the last frame may be incomplete if the writer was killed
		}
		if err != nil {
			return nil, fmt.Errorf("capture: cannot read frame %d of %s: %w", a.report.Frames+1, path, err)
		}
		a.frame(data, info)
	}
	a.report.Outside, a.report.Group = flows(a.outside), flows(a.group)
	return a.report, nil
}

type analysis struct {
	inside         []netip.Prefix
	outside, group map[Flow]*Flow
	report         *CaptureReport
}

// frame adds a frame to the report. It decodes only the necessary headers, so the payload may be
// truncated.
func (a *analysis) frame(data []byte, info gopacket.CaptureInfo) {
	a.report.Frames++
	packet := gopacket.NewPacket(data, layers.LayerTypeEthernet, gopacket.DecodeOptions{Lazy: true, NoCopy: true})
	eth, ok := packet.Layer(layers.LayerTypeEthernet).(*layers.Ethernet)
	if !ok {
		a.report.Other["malformed"]++
		return
	}
	f := Flow{SrcMAC: eth.SrcMAC.String(), DstMAC: eth.DstMAC.String()}
	switch l := packet.Layer(layers.LayerTypeARP); {
	case l != nil:
		arp := l.(*layers.ARP)
		f.Protocol = "arp"
		f.Src, _ = netip.AddrFromSlice(arp.SourceProtAddress)
		f.Dst, _ = netip.AddrFromSlice(arp.DstProtAddress)
	case packet.Layer(layers.LayerTypeIPv4) != nil:
		ip := packet.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
		f.Src, _ = netip.AddrFromSlice(ip.SrcIP.To4())
		f.Dst, _ = netip.AddrFromSlice(ip.DstIP.To4())
		f.Protocol = protocolName(ip.Protocol)
	case packet.Layer(layers.LayerTypeIPv6) != nil:
		ip := packet.Layer(layers.LayerTypeIPv6).(*layers.IPv6)
		f.Src, _ = netip.AddrFromSlice(ip.SrcIP)
		f.Dst, _ = netip.AddrFromSlice(ip.DstIP)
		f.Protocol = protocolName(ip.NextHeader)
	default:
		a.report.Other[eth.EthernetType.String()]++
		return
	}
	if tcp, ok := packet.Layer(layers.LayerTypeTCP).(*layers.TCP); ok {
		f.Protocol, f.DstPort = "tcp", uint16(tcp.DstPort)
	} else if udp, ok := packet.Layer(layers.LayerTypeUDP).(*layers.UDP); ok {
		f.Protocol, f.DstPort = "udp", uint16(udp.DstPort)
	}
	switch a.place(f.Dst) {
	case placeInside:
		a.report.Inside++
	case placeGroup:
		count(a.group, f, info)
	case placeOutside:
		count(a.outside, f, info)
	}
}

type place int

const (
	placeInside place = iota
	placeGroup
	placeOutside
)

func (a *analysis) place(dst netip.Addr) place {
	if dst.IsMulticast() || dst == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return placeGroup
	}
	if dst.Is6() && dst.IsLinkLocalUnicast() {
		return placeInside
	}
	for _, p := range a.inside {
		if !p.Contains(dst) {
			continue
		}
		if p.Addr().Is4() && p.Bits() < 31 && dst == broadcast(p) {
			return placeGroup
		}
		return placeInside
	}
	return placeOutside
}

// broadcast returns the broadcast address of an IPv4 network, which is its last address.
func broadcast(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(b)
}

func protocolName(p layers.IPProtocol) string {
	switch p {
	case layers.IPProtocolTCP:
		return "tcp"
	case layers.IPProtocolUDP:
		return "udp"
	case layers.IPProtocolICMPv4:
		return "icmp"
	case layers.IPProtocolICMPv6:
		return "icmp6"
	case layers.IPProtocolIGMP:
		return "igmp"
	}
	return fmt.Sprintf("protocol %d", uint8(p))
}

// count adds a frame to its flow.
func count(to map[Flow]*Flow, key Flow, info gopacket.CaptureInfo) {
	f := to[key]
	if f == nil {
		f = new(key)
		f.First = info.Timestamp
		to[key] = f
	}
	f.Packets++
	f.Bytes += info.Length
}

func flows(from map[Flow]*Flow) []Flow {
	all := make([]Flow, 0, len(from))
	for _, f := range from {
		all = append(all, *f)
	}
	slices.SortFunc(all, func(a, b Flow) int {
		return cmp.Or(a.First.Compare(b.First), cmp.Compare(a.String(), b.String()))
	})
	return all
}
