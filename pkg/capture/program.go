// Package capture records the packets that pass a network link, as tcpdump does.
//
// It has two halves. Compile turns an expression into a filter: a program of classic BPF. That
// happens where the operator is, so that PID 1 reads no language. Open has the kernel check the
// filter, attaches it to a packet socket, and reads what it lets through.
//
// A filter works on every kind of link. What differs between them stands before it, put there by
// Program: the place and the type of the network layer's header, in two words of scratch memory.
//
// What goes to and comes from the API's port is never recorded. A capture is sent over that port:
// each packet that it holds would be the cause of another one. All of the port is left out, and not
// the caller's connection alone, because two captures would feed each other as well.
package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/net/bpf"

	"github.com/orlop-os/orlop/pkg/paths"
)

// LinkType is what the packets of a link begin with, by the number that pcap files have for it
// (https://www.tcpdump.org/linktypes.html).
type LinkType uint32

// The kinds of links that packets can be recorded of.
const (
	Ethernet LinkType = 1   // an Ethernet header, which the loopback has too
	IP       LinkType = 101 // an IPv4 or IPv6 header: tunnels
)

// MaxSnaplen is how many bytes of a packet are kept at most: more than any has that the kernel
// hands over, 64 KiB of segments in one and their headers.
const MaxSnaplen = 256 << 10

// maxProgram is how many instructions the kernel takes (BPF_MAXINSNS of linux/bpf_common.h).
const maxProgram = 4096

// The words of scratch memory that a filter finds filled.
const (
	headerWord = 0 // where in the packet the header of the network layer begins
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

// prologues fill the two words.
var prologues = map[LinkType][]bpf.Instruction{
	// One VLAN tag is skipped. Few packets have it: the kernel keeps it apart where the driver lets
	// it.
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
	// The version in the first four bits; there are but two.
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

// Program makes of a filter what is attached to the socket of a link. No filter lets everything
// through but the API's port.
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
		return nil, fmt.Errorf("filter: it has %d instructions; at most %d are taken", len(filter), most)
	}
	return append(before, filter...), nil
}

// all and nothing are filters.
var (
	all     = []bpf.RawInstruction{{Op: 0x06, K: MaxSnaplen}} // ret #MaxSnaplen
	nothing = []bpf.RawInstruction{{Op: 0x06, K: 0}}
)

// Encode writes a filter as the API has it: 8 bytes for each instruction.
func Encode(filter []bpf.RawInstruction) ([]byte, error) {
	return binary.Append(nil, binary.BigEndian, filter)
}

// Decode reads a filter that Encode has written. Whether it is one that the kernel takes is not
// looked at.
func Decode(text []byte) ([]bpf.RawInstruction, error) {
	if len(text)%8 != 0 || len(text) > 8*maxProgram {
		return nil, fmt.Errorf("filter: %d bytes are no program: each instruction has 8, and there are at most %d", len(text), maxProgram)
	}
	filter := make([]bpf.RawInstruction, len(text)/8)
	_, err := binary.Decode(text, binary.BigEndian, filter)
	return filter, err
}

// The reasons for which Open fails that are the caller's; errors.Is finds them.
var (
	ErrNoLink = errors.New("there is no such link")
	ErrFilter = errors.New("the kernel refuses the filter")
)
