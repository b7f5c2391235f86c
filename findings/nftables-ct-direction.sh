#!/bin/bash
# google/nftables v0.3.0 cannot match the reply direction of a connection, and cannot read a chain in which nft does.
#
# The direction of a ct expression (NFTA_CT_DIRECTION) is one byte in the kernel (net/netfilter/nft_ct.c). The library writes four bytes,
# of which the kernel uses the first: the zero of a big-endian 1. So a rule for the reply direction becomes one for the original
# direction, without an error. The reader expects four bytes, too: one such rule, whoever wrote it, makes GetRules fail for the whole
# chain.
#
# Seen on 2026-11-29 with nftables 1.0.6 and Linux 6.18:
#   written as reply:   ct original ip saddr 10.0.0.1
#   read from a chain:  0 rules, netlink: attribute 3 is not a uint32; length: 1
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
export PATH=$PATH:/usr/sbin GOFLAGS=-mod=mod
command -v nft >/dev/null || apt-get install -y --no-install-recommends nftables >/dev/null
cat >go.mod <<'END'
module finding
go 1.26
require github.com/google/nftables v0.3.0
END
cat >main.go <<'END'
package main

import (
	"fmt"
	"log"
	"os"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

func main() {
	conn, err := nftables.New()
	if err != nil {
		log.Fatal(err)
	}
	table := conn.AddTable(&nftables.Table{Name: "t", Family: nftables.TableFamilyIPv4})
	chain := conn.AddChain(&nftables.Chain{Name: os.Args[1], Table: table})
	if chain.Name == "written" {
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Ct{Key: expr.CtKeySRC, Direction: 1, Register: 1}, // IP_CT_DIR_REPLY
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{10, 0, 0, 1}},
		}})
	}
	if err := conn.Flush(); err != nil {
		log.Fatal(err)
	}
	rules, err := conn.GetRules(table, chain)
	fmt.Printf("%d rules, %v\n", len(rules), err)
}
END
go build -o rules .
got=$(unshare --map-root-user --net bash -euo pipefail <<'END'
printf 'table ip t {\nchain read {\ncounter\nct reply ip saddr 10.0.0.1\n}\n}\n' | nft -f -
./rules written >/dev/null
echo "written as reply:   $(nft list chain ip t written | sed -n 's/^\t*\(ct .*\)/\1/p')"
echo "read from a chain:  $(./rules read)"
END
)
echo "$got"
want='written as reply:   ct original ip saddr 10.0.0.1
read from a chain:  0 rules, netlink: attribute 3 is not a uint32; length: 1'
[[ $got == "$want" ]] || { echo "the behavior has changed"; exit 1; }
