#!/bin/bash
# jsimonetti/rtnetlink v2.3.0 has the index of the link below a VLAN (IFLA_LINK) in the field LinkAttributes.Type, whose comment says
# "Link type". Its LinkMessage.Type is the real type (ARPHRD_*). No other field writes IFLA_LINK, and IFLA_GROUP is read but never
# written.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >go.mod <<'END'
module finding
go 1.26
require github.com/jsimonetti/rtnetlink/v2 v2.3.0
END
cat >main.go <<'END'
package main

import (
	"fmt"

	"github.com/jsimonetti/rtnetlink/v2"
	"github.com/mdlayher/netlink"
)

const (
	iflaLink  = 5
	iflaGroup = 27
)

func attributes(m rtnetlink.LinkMessage) map[uint16]uint32 {
	b, err := m.MarshalBinary()
	if err != nil {
		panic(err)
	}
	ad, err := netlink.NewAttributeDecoder(b[16:])
	if err != nil {
		panic(err)
	}
	out := map[uint16]uint32{}
	for ad.Next() {
		out[ad.Type()] = ad.Uint32()
	}
	return out
}

func main() {
	group := uint32(79)
	got := attributes(rtnetlink.LinkMessage{Attributes: &rtnetlink.LinkAttributes{Type: 7, NetDevGroup: &group}})
	_, hasGroup := got[iflaGroup]
	fmt.Printf("IFLA_LINK is %d, IFLA_GROUP is written: %v\n", got[iflaLink], hasGroup)
	if got[iflaLink] != 7 || hasGroup {
		panic("the behavior has changed")
	}
}
END
GOFLAGS=-mod=mod go run .
