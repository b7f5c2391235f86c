#!/bin/bash
# gobgp v4.8.0 writes an OPEN message of BGP with a wrong length if the optional parameters have more than 255 octets, without an error.
#
# The length of the parameters is one octet (RFC 4271, section 4.2). RFC 9072 has a second format for longer parameters: the octets 255
# and 255, then a length of two octets. The library knows only the first format. Serialize keeps the low eight bits of the length, so the
# peer finds a few octets of parameters and a rest. The library reads neither this message nor a valid one in the second format.
# A capability for an address family has six octets: 42 of them fit.
#
# Seen on 2026-11-29:
#   42 capabilities: parameters 254 of 254 octets, read 42, <nil>
#   43 capabilities: parameters 4 of 260 octets, read 0, Not all DefaultParameterCapability bytes available
#   RFC 9072, 42 capabilities: read 0, Malformed BGP Open message
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >go.mod <<'END'
module finding
go 1.26
require github.com/osrg/gobgp/v4 v4.8.0
END
cat >main.go <<'END'
package main

import (
	"encoding/binary"
	"fmt"
	"log"
	"net/netip"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

const header = bgp.BGP_HEADER_LENGTH

// open returns an OPEN message with capabilities in one parameter.
func open(n int) []byte {
	var all []bgp.ParameterCapabilityInterface
	for i := range n {
		all = append(all, bgp.NewCapMultiProtocol(bgp.NewFamily(1, uint8(i))))
	}
	m, err := bgp.NewBGPOpenMessage(65001, 90, netip.MustParseAddr("192.0.2.1"), []bgp.OptionParameterInterface{bgp.NewOptionParameterCapability(all)})
	if err != nil {
		log.Fatal(err)
	}
	b, err := m.Serialize()
	if err != nil {
		log.Fatal(err)
	}
	return b
}

// read returns the number of capabilities that the library finds in the body of a message.
func read(body []byte) (n int, err error) {
	m, err := bgp.ParseBGPBody(&bgp.BGPHeader{Type: bgp.BGP_MSG_OPEN, Len: uint16(header + len(body))}, body)
	if err != nil {
		return 0, err
	}
	for _, p := range m.Body.(*bgp.BGPOpen).OptParams {
		n += len(p.(*bgp.OptionParameterCapability).Capability)
	}
	return n, nil
}

func main() {
	for _, n := range []int{42, 43} {
		b := open(n)
		found, err := read(b[header:])
		fmt.Printf("%d capabilities: parameters %d of %d octets, read %d, %v\n", n, b[header+9], len(b)-header-10, found, err)
	}
	short := open(42)[header:]
	capabilities := short[12:]
	long := append(append([]byte{}, short[:9]...), 255, 255)
	long = binary.BigEndian.AppendUint16(long, uint16(3+len(capabilities)))
	long = append(long, bgp.BGP_OPT_CAPABILITY)
	long = binary.BigEndian.AppendUint16(long, uint16(len(capabilities)))
	found, err := read(append(long, capabilities...))
	fmt.Printf("RFC 9072, 42 capabilities: read %d, %v\n", found, err)
}
END
export GOFLAGS=-mod=mod
got=$(go run .)
echo "$got"
want='42 capabilities: parameters 254 of 254 octets, read 42, <nil>
43 capabilities: parameters 4 of 260 octets, read 0, Not all DefaultParameterCapability bytes available
RFC 9072, 42 capabilities: read 0, Malformed BGP Open message'
[[ $got == "$want" ]] || { echo "the behavior has changed"; exit 1; }
