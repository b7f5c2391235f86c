// Package capture records the packets of a network link, as tcpdump does.
//
// The package has two halves. On the operator's computer, Compile compiles an expression to a
// filter, which is a program of classic BPF. So PID 1 need not parse a language. On the machine,
// Open attaches the filter to a packet socket, for which the kernel checks the filter, and reads
// the packets that pass.
//
// A filter works on every kind of link. Program prepends the code that depends on the kind (the
// prologue), which stores the offset and the type of the network-layer header in two words of
// scratch memory.
//
// A capture never records packets from or to the API's port. The machine sends the recorded packets
// over this port, so each recorded packet would cause another packet. The whole port is excluded,
// not only the caller's connection, because otherwise two captures would record each other's
// packets.
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
	Ethernet LinkType = 1   // an Ethernet header; also on the loopback
	IP       LinkType = 101 // an IPv4 or IPv6 header: tunnels
)

// MaxSnaplen is the maximum number of recorded bytes of a packet. It is more than the largest
// packet that the kernel delivers: 64 KiB of coalesced segments and their headers.
const MaxSnaplen = 256 << 10

// maxProgram is the maximum number of instructions of a program in the kernel (BPF_MAXINSNS of
// linux/bpf_common.h).
const maxProgram = 4096

// Words of scratch memory that are set when a filter starts.
const (
	headerWord = 0 // offset of the network-layer header in the packet
	typeWord   = 1 // its EtherType
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
	// A VLAN tag is skipped. Few packets contain the tag, because the kernel stores it separately
	// if the driver supports this.
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
	// The first four bits are the version of IP: 4 or 6.
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

// Program returns the program for a kind of link: the prologue, the exclusion of the API's port,
// and the filter. An empty filter passes all other packets.
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
	if most := maxProgram - len(before); len(filter) > most {
		return nil, fmt.Errorf("filter: it has %d instructions; at most %d are permitted", len(filter), most)
	}
	return append(before, filter...), nil
}

// passAll and passNone are the filters that pass all packets and no packet.
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

// Errors of Open that the caller caused; errors.Is finds them.
var (
	ErrNoLink = errors.New("there is no such link")
	ErrFilter = errors.New("the kernel refuses the filter")
)
