#!/bin/bash
# jsimonetti/rtnetlink v2.3.0 cannot list the routing rules of a machine if one of them names a single port and Linux is newer than 6.12.
#
# Linux 6.18 sends the mask of the port (FRA_SPORT_MASK 28, FRA_DPORT_MASK 29) with the rule of `ip rule add sport 80`. The library returns
# an error for an attribute of a rule that it does not know, so the whole list fails, whichever component made the rule. Its decoders of
# links and addresses ignore unknown attributes.
#
# A range of user IDs has two numbers of 32 bits (include/uapi/linux/fib_rules.h, struct fib_rule_uid_range). The library reads two numbers of
# 16 bits: the halves of the first ID. It writes 4 octets, which the kernel rejects.
#
# The messages below are those of Linux 6.18 for `ip rule add sport 80 table 100` and `ip rule add uidrange 1000-70000 table 100`.
#
# Seen on 2026-11-29:
#   sport 80:            rtnetlink RuleMessage contains an unknown Attribute
#   uidrange 1000-70000: 1000-0, written as 4 octets
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
	"log"

	"github.com/jsimonetti/rtnetlink/v2"
	"github.com/mdlayher/netlink"
)

// message returns a rule that looks up table 100, with more attributes.
func message(more ...netlink.Attribute) []byte {
	b, err := netlink.MarshalAttributes(append([]netlink.Attribute{{Type: 15, Data: []byte{100, 0, 0, 0}}}, more...)) // FRA_TABLE
	if err != nil {
		log.Fatal(err)
	}
	return append([]byte{2, 0, 0, 0, 100, 0, 0, 1, 0, 0, 0, 0}, b...)
}

func main() {
	var port, user rtnetlink.RuleMessage
	err := port.UnmarshalBinary(message(
		netlink.Attribute{Type: 23, Data: []byte{80, 0, 80, 0}},  // FRA_SPORT_RANGE
		netlink.Attribute{Type: 28, Data: []byte{0xff, 0xff}})) // FRA_SPORT_MASK
	fmt.Println("sport 80:           ", err)
	if err := user.UnmarshalBinary(message(netlink.Attribute{Type: 20, Data: []byte{0xe8, 3, 0, 0, 0x70, 0x11, 1, 0}})); err != nil { // FRA_UID_RANGE
		log.Fatal(err)
	}
	b, err := user.MarshalBinary()
	if err != nil {
		log.Fatal(err)
	}
	attributes, err := netlink.UnmarshalAttributes(b[12:])
	if err != nil {
		log.Fatal(err)
	}
	for _, a := range attributes {
		if a.Type == 20 {
			fmt.Printf("uidrange 1000-70000: %d-%d, written as %d octets\n", user.Attributes.UIDRange.Start, user.Attributes.UIDRange.End, len(a.Data))
		}
	}
}
END
export GOFLAGS=-mod=mod
got=$(go run .)
echo "$got"
want='sport 80:            rtnetlink RuleMessage contains an unknown Attribute
uidrange 1000-70000: 1000-0, written as 4 octets'
[[ $got == "$want" ]] || { echo "the behavior has changed"; exit 1; }
