package capture

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/net/bpf"
)

// code is a program, or a piece of one, that leaves 1 in the accumulator when it is true of the
// packet, and 0 when it is not. It may use the index register. Pieces are put together by and, or
// and not; a piece that need not run is jumped over, and must be where it reads what another piece
// has to have seen: reading behind the packet's end ends the program, and the packet is not taken.
type code []bpf.Instruction

// IP protocols (https://www.iana.org/assignments/protocol-numbers).
const (
	protoICMP  = 1
	protoTCP   = 6
	protoUDP   = 17
	protoICMP6 = 58
	protoSCTP  = 132
)

// and is true when all are.
func and(first code, more ...code) code {
	for _, c := range more {
		first = slices.Concat(first, code{bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: 1}, bpf.Jump{Skip: uint32(len(c))}}, c)
	}
	return first
}

// or is true when one is.
func or(first code, more ...code) code {
	for _, c := range more {
		first = slices.Concat(first, code{bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 1}, bpf.Jump{Skip: uint32(len(c))}}, c)
	}
	return first
}

func not(c code) code { return slices.Concat(c, code{bpf.ALUOpConstant{Op: bpf.ALUOpXor, Val: 1}}) }

// is loads a value, and is true when those of its bits that the mask has are the wanted ones.
func is(mask, want uint32, load ...bpf.Instruction) code {
	return slices.Concat(code(load), code{
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: mask},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: want & mask, SkipFalse: 2},
		bpf.LoadConstant{Dst: bpf.RegA, Val: 1},
		bpf.Jump{Skip: 1},
		bpf.LoadConstant{Dst: bpf.RegA, Val: 0},
	})
}

// field compares size bytes at an offset in the header of the network layer.
func field(offset uint32, size int, mask, want uint32) code {
	return is(mask, want, bpf.LoadScratch{Dst: bpf.RegX, N: headerWord}, bpf.LoadIndirect{Off: offset, Size: size})
}

// behind4 compares two bytes at an offset behind an IPv4 header, which says itself how long it is.
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

// behind6 is the same behind an IPv6 header without extensions.
func behind6(offset uint32, want uint32) code { return field(40+offset, 2, 0xffff, want) }

func etherType(want uint32) code {
	return is(0xffff, want, bpf.LoadScratch{Dst: bpf.RegA, N: typeWord})
}

func protocol4(want uint32) code { return and(etherType(etherIPv4), field(9, 1, 0xff, want)) }
func protocol6(want uint32) code { return and(etherType(etherIPv6), field(6, 1, 0xff, want)) }

// either is true of the source, of the destination, or of one of them, as the direction wants it:
// "src", "dst" or "".
func either(direction string, source, destination code) code {
	switch direction {
	case "src":
		return source
	case "dst":
		return destination
	}
	return or(source, destination)
}

// port is true of packets of the protocols from or to a port. Of an IPv4 packet in fragments only
// the first one has the ports.
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

// network is true of packets from or to addresses with a prefix. family is an EtherType that they
// are to be of; 0 for any. Requests and answers of ARP have IPv4 addresses, too.
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
