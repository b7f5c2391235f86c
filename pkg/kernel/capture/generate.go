package capture

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/net/bpf"
)

// code is a program, or a fragment, that sets the accumulator to 1 if it matches the packet, and to
// 0 otherwise. It can use the index register. The functions and, or and not combine fragments and
// skip a fragment if its result is not needed. A fragment that depends on the result of another
// must be skipped in this way: a read beyond the end of the packet ends the program, and the packet
// is rejected.
type code []bpf.Instruction

// IP protocols (https://www.iana.org/assignments/protocol-numbers).
const (
	protoICMP  = 1
	protoTCP   = 6
	protoUDP   = 17
	protoICMP6 = 58
	protoSCTP  = 132
)

// and matches if all fragments match.
func and(first code, more ...code) code {
	for _, c := range more {
		first = slices.Concat(first, code{bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: 1}, bpf.Jump{Skip: uint32(len(c))}}, c)
	}
	return first
}

// or matches if a fragment matches.
func or(first code, more ...code) code {
	for _, c := range more {
		first = slices.Concat(first, code{bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 1}, bpf.Jump{Skip: uint32(len(c))}}, c)
	}
	return first
}

func not(c code) code { return slices.Concat(c, code{bpf.ALUOpConstant{Op: bpf.ALUOpXor, Val: 1}}) }

// is loads a value, and matches if its bits within mask equal those of want.
func is(mask, want uint32, load ...bpf.Instruction) code {
	return slices.Concat(code(load), code{
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: mask},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: want & mask, SkipFalse: 2},
		bpf.LoadConstant{Dst: bpf.RegA, Val: 1},
		bpf.Jump{Skip: 1},
		bpf.LoadConstant{Dst: bpf.RegA, Val: 0},
	})
}

// field compares size bytes at an offset in the network-layer header.
func field(offset uint32, size int, mask, want uint32) code {
	return is(mask, want, bpf.LoadScratch{Dst: bpf.RegX, N: headerWord}, bpf.LoadIndirect{Off: offset, Size: size})
}

// behind4 compares two bytes at an offset after an IPv4 header. The header contains its own length.
func behind4(offset uint32, want uint32) code {
	return is(0xffff, want,
		bpf.LoadScratch{Dst: bpf.RegX, N: headerWord},
		bpf.LoadIndirect{Off: 0, Size: 1},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0x0f}, // words of 32 bits
		bpf.ALUOpConstant{Op: bpf.ALUOpShiftLeft, Val: 2},
		bpf.ALUOpX{Op: bpf.ALUOpAdd},
		bpf.TAX{},
		bpf.LoadIndirect{Off: offset, Size: 2})
}

// behind6 compares two bytes at an offset after an IPv6 header without extensions.
func behind6(offset uint32, want uint32) code { return field(40+offset, 2, 0xffff, want) }

func etherType(want uint32) code {
	return is(0xffff, want, bpf.LoadScratch{Dst: bpf.RegA, N: typeWord})
}

func protocol4(want uint32) code { return and(etherType(etherIPv4), field(9, 1, 0xff, want)) }
func protocol6(want uint32) code { return and(etherType(etherIPv6), field(6, 1, 0xff, want)) }

// either combines the matches for the source and the destination according to the direction: "src",
// "dst", or "" for both.
func either(direction string, source, destination code) code {
	switch direction {
	case "src":
		return source
	case "dst":
		return destination
	}
	return or(source, destination)
}

// port matches packets of the protocols from or to a port. Of a fragmented IPv4 packet, only the
// first fragment contains the ports.
func port(protocols []uint32, direction string, number uint32) code {
	var v4, v6 code
	for i, p := range protocols {
		if i == 0 {
			v4, v6 = protocol4(p), protocol6(p)
			continue
		}
		v4, v6 = or(v4, protocol4(p)), or(v6, protocol6(p))
	}
	return or(
		and(v4, field(6, 2, 0x1fff, 0), either(direction, behind4(0, number), behind4(2, number))),
		and(v6, either(direction, behind6(0, number), behind6(2, number))))
}

// network matches packets from or to addresses with a prefix. family is the required EtherType; 0
// for any. ARP requests and answers contain IPv4 addresses, too.
func network(family uint32, direction string, prefix netip.Prefix) code {
	if prefix.Addr().Is6() {
		return and(etherType(etherIPv6), either(direction, address(8, prefix), address(24, prefix)))
	}
	v4 := and(etherType(etherIPv4), either(direction, address(12, prefix), address(16, prefix)))
	arp := and(etherType(etherARP), either(direction, address(14, prefix), address(24, prefix)))
	switch family {
	case etherIPv4:
		return v4
	case etherARP:
		return arp
	}
	return or(v4, arp)
}

// address compares the address at an offset with a prefix, 32 bits at a time.
func address(offset uint32, prefix netip.Prefix) code {
	var words []code
	bytes := prefix.Addr().AsSlice()
	for i := 0; i == 0 || 8*i < prefix.Bits(); i += 4 {
		mask := ^uint32(0) << max(0, 8*i+32-prefix.Bits())
		words = append(words, field(offset+uint32(i), 4, mask, binary.BigEndian.Uint32(bytes[i:])))
	}
	return and(words[0], words[1:]...)
}
