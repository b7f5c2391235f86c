// Package capture records the packets of a network link, as tcpdump does.
//
// It has two halves. Compile compiles an expression to a filter: a program of classic BPF. This
// happens on the operator's machine, so that PID 1 does not parse a language. Open makes the kernel
// check the filter, attaches it to a packet socket, and reads the packets that it passes.
//
// A filter works on every kind of link. Program prepends the code that differs between kinds: it
// stores the offset and the type of the network-layer header in two words of scratch memory.
//
// A capture never records packets from or to the API's port. The machine sends the capture over
// that port: each recorded packet would cause another packet. The whole port is excluded, not only
// the caller's connection, because two captures would feed each other as well.
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

// maxProgram is the maximum number of instructions in the kernel (BPF_MAXINSNS of
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

// prologues set the two words.
var prologues = map[LinkType][]bpf.Instruction{
	// One VLAN tag is skipped. Few packets contain it: the kernel stores it separately if the
	// driver supports that.
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
	// The first four bits are the version; there are only two.
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

// Program prepends to a filter the code for a kind of link. Without a filter, it passes all packets
// except those of the API's port.
func Program(link LinkType, filter []bpf.RawInstruction) ([]bpf.RawInstruction, error) {
	before, err := bpf.Assemble(slices.Concat(prologues[link], not(port([]uint32{protoTCP}, "", paths.PortApid)), code{
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
	}))
	if err != nil {
		return nil, fmt.Errorf("filter: %w", err)
	}
	if len(filter) == 0 {
		filter = all
	}
	if most := maxProgram - len(before); len(filter) > most {
		return nil, fmt.Errorf("filter: it has %d instructions; at most %d are permitted", len(filter), most)
	}
	return append(before, filter...), nil
}

// all and nothing are the filters that pass all packets and no packet.
var (
	all     = []bpf.RawInstruction{{Op: 0x06, K: MaxSnaplen}} // ret #MaxSnaplen
	nothing = []bpf.RawInstruction{{Op: 0x06, K: 0}}
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
