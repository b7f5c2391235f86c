package capture

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/net/bpf"
)

// code is a fragment of a BPF program. It sets the accumulator to 1 if it matches the packet, and
// to 0 if not. It can change the index register. The functions `and`, `or` and `not` combine
// fragments. At run time, a fragment is skipped if its result is not needed. For example, the check
// of a port must be skipped if the protocol does not match, because a read beyond the end of the
// packet ends the program and rejects the packet.
type code []bpf.Instruction

// IP protocols (https://www.iana.org/assignments/protocol-numbers).
const (
	protoICMP  = 1
	protoTCP   = 6
	protoUDP   = 17
	protoICMP6 = 58
	protoSCTP  = 132
)

// The function and returns a fragment that matches if all given fragments match.
func and(first code, more ...code) code {
	for _, c := range more {
		first = slices.Concat(first, code{bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: 1}, bpf.Jump{Skip: uint32(len(c))}}, c)
	}
	return first
}

// The function or returns a fragment that matches if at least one given fragment matches.
func or(first code, more ...code) code {
	for _, c := range more {
		first = slices.Concat(first, code{bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 1}, bpf.Jump{Skip: uint32(len(c))}}, c)
	}
	return first
}

func not(c code) code { return slices.Concat(c, code{bpf.ALUOpConstant{Op: bpf.ALUOpXor, Val: 1}}) }

// The function is returns a fragment that loads a value, and matches if the value masked by mask
// equals want.
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

// after4 compares two bytes at an offset from the end of an IPv4 header. The length of the header
// is in its first byte.
func after4(offset uint32, want uint32) code {
	return is(0xffff, want,
		bpf.LoadScratch{Dst: bpf.RegX, N: headerWord},
		bpf.LoadIndirect{Off: 0, Size: 1},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0x0f}, // words of 32 bits
		bpf.ALUOpConstant{Op: bpf.ALUOpShiftLeft, Val: 2},
		bpf.ALUOpX{Op: bpf.ALUOpAdd},
		bpf.TAX{},
		bpf.LoadIndirect{Off: offset, Size: 2})
}

// after6 compares two bytes at an offset from the end of an IPv6 header without extension headers.
func after6(offset uint32, want uint32) code { return field(40+offset, 2, 0xffff, want) }

func etherType(want uint32) code {
	return is(0xffff, want, bpf.LoadScratch{Dst: bpf.RegA, N: typeWord})
}

func protocol4(want uint32) code { return and(etherType(etherIPv4), field(9, 1, 0xff, want)) }
func protocol6(want uint32) code { return and(etherType(etherIPv6), field(6, 1, 0xff, want)) }

// byDirection returns the fragment for the direction: source for "src", destination for "dst", or a
// match of either for "".
func byDirection(direction string, source, destination code) code {
	switch direction {
	case "src":
		return source
	case "dst":
		return destination
	}
	return or(source, destination)
}

// port matches packets of the protocols from or to a port. Of a fragmented IPv4 packet, it matches
// only the first fragment, because the others do not contain the ports.
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
		and(v4, field(6, 2, 0x1fff, 0), byDirection(direction, after4(0, number), after4(2, number))),
		and(v6, byDirection(direction, after6(0, number), after6(2, number))))
}

// network matches packets from or to addresses with a prefix. family is the required EtherType; 0
// for any. An IPv4 prefix also matches the addresses in ARP requests and answers.
func network(family uint32, direction string, prefix netip.Prefix) code {
	if prefix.Addr().Is6() {
		return and(etherType(etherIPv6), byDirection(direction, address(8, prefix), address(24, prefix)))
	}
	v4 := and(etherType(etherIPv4), byDirection(direction, address(12, prefix), address(16, prefix)))
	arp := and(etherType(etherARP), byDirection(direction, address(14, prefix), address(24, prefix)))
	switch family {
	case etherIPv4:
		return v4
	case etherARP:
		return arp
	}
	return or(v4, arp)
}

// address returns a fragment that compares the address at an offset of the network-layer header
// with a prefix, 32 bits at a time.
func address(offset uint32, prefix netip.Prefix) code {
	var words []code
	bytes := prefix.Addr().AsSlice()
	for i := 0; i == 0 || 8*i < prefix.Bits(); i += 4 {
		mask := ^uint32(0) << max(0, 8*i+32-prefix.Bits())
		words = append(words, field(offset+uint32(i), 4, mask, binary.BigEndian.Uint32(bytes[i:])))
	}
	return and(words[0], words[1:]...)
}
