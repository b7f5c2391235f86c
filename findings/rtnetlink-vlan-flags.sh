#!/bin/bash
# jsimonetti/rtnetlink v2.3.0 decodes IFLA_VLAN_FLAGS as nested attributes. The kernel sends a structure of two numbers, flags and mask
# (net/8021q/vlan_netlink.c, vlan_fill_info). The decoder stops there without an error, so all attributes behind IFLA_LINKINFO are
# missing. The kernel sends IFLA_LINK, the link below a VLAN, behind it (net/core/rtnetlink.c, rtnl_fill_ifinfo). Without the driver of
# VLANs, the same message is read whole.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/plain" "$dir/with"
cd "$dir"
cat >go.mod <<'END'
module finding
go 1.26
require github.com/jsimonetti/rtnetlink/v2 v2.3.0
END
cat >plain/main.go <<'END'
package main

import (
	"fmt"

	"github.com/jsimonetti/rtnetlink/v2"
	"github.com/mdlayher/netlink"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func main() {
	ae := netlink.NewAttributeEncoder()
	ae.Nested(18, func(info *netlink.AttributeEncoder) error { // IFLA_LINKINFO
		info.String(1, "vlan")                                        // IFLA_INFO_KIND
		info.Nested(2, func(data *netlink.AttributeEncoder) error { // IFLA_INFO_DATA
			data.Uint16(1, 100)                                // IFLA_VLAN_ID
			data.Bytes(2, []byte{1, 0, 0, 0, 255, 255, 255, 255}) // IFLA_VLAN_FLAGS: flags, mask
			return nil
		})
		return nil
	})
	ae.Uint32(5, 7) // IFLA_LINK
	var m rtnetlink.LinkMessage
	err := m.UnmarshalBinary(append(make([]byte, 16), must(ae.Encode())...))
	fmt.Printf("error %v, IFLA_LINK %d\n", err, m.Attributes.Type)
}
END
sed 's|"github.com/mdlayher/netlink"|&\n\t_ "github.com/jsimonetti/rtnetlink/v2/driver"|' plain/main.go >with/main.go
export GOFLAGS=-mod=mod
plain=$(go run ./plain) with=$(go run ./with)
printf 'without the driver: %s\nwith the driver:    %s\n' "$plain" "$with"
[[ $plain == 'error <nil>, IFLA_LINK 7' && $with == 'error <nil>, IFLA_LINK 0' ]] || { echo "the behavior has changed"; exit 1; }
