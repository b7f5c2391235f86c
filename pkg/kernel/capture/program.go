// Package capture records the packets of a network link, as tcpdump does.
//
// The package has two halves. On the operator's computer, Compile compiles an expression to a
// filter, which is a program of classic BPF. So PID 1 need not parse the language of the
// expressions. On the machine, Open attaches the filter to a packet socket, and Capture.Next reads
// the packets that pass. The kernel checks the filter when it is attached.
//
// The same filter works on every kind of link. Program prepends the prologue, the code that depends
// on the kind of link. The prologue stores the offset and the type of the network-layer header in
// two words of scratch memory, and the filter reads these words.
//
// A capture never records packets from or to the API's port. The machine sends the recorded packets
// over this port, so each recorded packet would cause another packet. All connections to the port
// are excluded, not only the connection of the caller, because otherwise two captures would record
// each other's packets.
package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/net/bpf"

	"github.com/orlop-os/orlop/pkg/paths"
)

// LinkType is the kind of header at the beginning of a link's packets, by its number in pcap files
// (https://www.tcpdump.org/linktypes.html).
type LinkType uint32

// Supported kinds of links.
const (
	Ethernet LinkType = 1   // packets begin with an Ethernet header; also on the loopback link
	IP       LinkType = 101 // packets begin with an IPv4 or IPv6 header; on tunnels
)

// MaxSnaplen is the maximum number of recorded bytes of a packet. It is more than the largest
// packet that the kernel delivers: 64 KiB of coalesced segments and their headers.
const MaxSnaplen = 256 << 10

// maxProgram is the maximum number of instructions of a program in the kernel (BPF_MAXINSNS of
// linux/bpf_common.h).
const maxProgram = 4096

// Words of scratch memory, which the prologue sets before the filter starts.
const (
	headerWord = 0 // offset of the network-layer header in the packet
	typeWord   = 1 // EtherType of the network-layer header
)

// EtherTypes.
const (
	etherIPv4 = 0x0800
	etherARP  = 0x0806
	etherIPv6 = 0x86dd
	etherVLAN = 0x8100
	etherQinQ = 0x88a8
)

// prologues are the code that sets headerWord and typeWord, for each kind of link.
var prologues = map[LinkType][]bpf.Instruction{
	// If the packet contains a VLAN tag, the network-layer header is behind the tag. Few packets
	// contain the tag, because the kernel usually removes the tag and stores it separately.
	Ethernet: {
		bpf.LoadConstant{Dst: bpf.RegX, Val: 14},
		bpf.LoadAbsolute{Off: 12, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: etherVLAN, SkipTrue: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: etherQinQ, SkipTrue: 2},
		bpf.LoadConstant{Dst: bpf.RegX, Val: 18},
		bpf.LoadAbsolute{Off: 16, Size: 2},
		bpf.StoreScratch{Src: bpf.RegX, N: headerWord},
		bpf.StoreScratch{Src: bpf.RegA, N: typeWord},
	},
	// The first four bits of the packet are the version of IP: 4 or 6.
	IP: {
		bpf.LoadConstant{Dst: bpf.RegX, Val: 0},
		bpf.StoreScratch{Src: bpf.RegX, N: headerWord},
		bpf.LoadAbsolute{Off: 0, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: 0x60, SkipTrue: 2},
		bpf.LoadConstant{Dst: bpf.RegA, Val: etherIPv4},
		bpf.Jump{Skip: 1},
		bpf.LoadConstant{Dst: bpf.RegA, Val: etherIPv6},
		bpf.StoreScratch{Src: bpf.RegA, N: typeWord},
	},
}

// Program returns the program for a kind of link: the prologue, the code that excludes the API's
// port, and the filter. If the filter is empty, all packets to and from other ports pass. It fails
// if the program has too many instructions for the kernel.
func Program(link LinkType, filter []bpf.RawInstruction) ([]bpf.RawInstruction, error) {
	before, err := bpf.Assemble(slices.Concat(prologues[link], not(port([]uint32{protoTCP}, "", paths.PortApid)), code{
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
	}))
	if err != nil {
		return nil, fmt.Errorf("filter: %w", err)
	}
	if len(filter) == 0 {
		filter = passAll
	}
	if limit := maxProgram - len(before); len(filter) > limit {
		return nil, fmt.Errorf("filter: it has %d instructions; at most %d are permitted", len(filter), limit)
	}
	return append(before, filter...), nil
}

// All packets pass the filter passAll. No packet passes the filter passNone.
var (
	passAll  = []bpf.RawInstruction{{Op: 0x06, K: MaxSnaplen}} // ret #MaxSnaplen
	passNone = []bpf.RawInstruction{{Op: 0x06, K: 0}}
)

// Encode encodes a filter for the API: 8 bytes for each instruction.
func Encode(filter []bpf.RawInstruction) ([]byte, error) {
	return binary.Append(nil, binary.BigEndian, filter)
}

// Decode decodes the output of Encode. It does not check whether the kernel accepts the filter.
func Decode(text []byte) ([]bpf.RawInstruction, error) {
	if len(text)%8 != 0 || len(text) > 8*maxProgram {
		return nil, fmt.Errorf("filter: %d bytes are not a program: each instruction has 8 bytes, and at most %d are permitted", len(text), maxProgram)
	}
	filter := make([]bpf.RawInstruction, len(text)/8)
	_, err := binary.Decode(text, binary.BigEndian, filter)
	return filter, err
}

// Errors of Open that are the fault of the caller. Open wraps them (errors.Is).
var (
	ErrNoLink = errors.New("there is no such link")
	ErrFilter = errors.New("the kernel refuses the filter")
)
