#!/bin/bash
# github.com/insomniacslk/dhcp (2026-09-01) drops a DHCP search list in which a pointer leads to a name that ends in a pointer.
#
# RFC 3397 compresses the search list (option 119) as RFC 1035 does messages: a name may end in a pointer to an earlier name, which
# may itself end in a pointer. ISC dhcpd writes such lists for three domains of which each is below another. The library returns
# an error for the list, and DomainSearch returns nil without one.
#
# Seen on 2026-11-27:
#   one pointer:     [eng.example.com sales.example.com]
#   nested pointers: <nil>, rfc1035label: cannot handle nested pointers
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >go.mod <<'MOD'
module finding

go 1.26

require github.com/insomniacslk/dhcp v0.0.0-20260901064844-234b97448fae
MOD
cat >main.go <<'GO'
package main

import (
	"fmt"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/rfc1035label"
)

func search(b string) *rfc1035label.Labels {
	m, err := dhcpv4.New(dhcpv4.WithGeneric(dhcpv4.OptionDNSDomainSearchList, []byte(b)))
	if err != nil {
		panic(err)
	}
	return m.DomainSearch()
}

func main() {
	one := "\x03eng\x07example\x03com\x00" + "\x05sales\xc0\x04"
	nested := one + "\x04corp\xc0\x11" // leads to "sales", which ends in a pointer
	_, err := rfc1035label.FromBytes([]byte(nested))
	fmt.Printf("one pointer:     %v\n", search(one))
	fmt.Printf("nested pointers: %v, %v\n", search(nested), err)
}
GO
go mod tidy 2>/dev/null
go run . | tee out
grep -qx 'one pointer:     \[eng.example.com sales.example.com\]' out
grep -qx 'nested pointers: <nil>, rfc1035label: cannot handle nested pointers' out
