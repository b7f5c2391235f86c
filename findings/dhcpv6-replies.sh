#!/bin/bash
# insomniacslk/dhcp v0.0.0-20260901064844-234b97448fae: NewReplyFromMessage makes no reply for two valid messages of DHCPv6. A server
# answers a DECLINE with a REPLY (RFC 8415, section 18.3.8); the function rejects the type. A client may send an Information-request
# without its DUID (section 16.12), for example to stay anonymous; the function needs one. A server built on it must make both replies by
# hand, and a client that is tested only against it never sees them.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >go.mod <<'END'
module finding
go 1.26
require github.com/insomniacslk/dhcp v0.0.0-20260901064844-234b97448fae
END
cat >main.go <<'END'
package main

import (
	"fmt"
	"net"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
)

func main() {
	client := &dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}}
	decline := &dhcpv6.Message{MessageType: dhcpv6.MessageTypeDecline}
	decline.AddOption(dhcpv6.OptClientID(client))
	information := &dhcpv6.Message{MessageType: dhcpv6.MessageTypeInformationRequest}
	for _, m := range []*dhcpv6.Message{decline, information} {
		_, err := dhcpv6.NewReplyFromMessage(m)
		fmt.Printf("%s: %v\n", m.MessageType, err)
	}
}
END
export GOFLAGS=-mod=mod
got=$(go run .)
echo "$got"
want='DECLINE: cannot create REPLY from the passed message type set
INFORMATION-REQUEST: Client ID cannot be nil when building REPLY'
[[ $got == "$want" ]] || { echo "the behavior has changed"; exit 1; }
