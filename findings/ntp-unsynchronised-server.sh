#!/bin/bash
# github.com/beevik/ntp v1.6.0 reports "kiss of death" for a chrony server that is not synchronised.
#
# chronyd without a source answers with leap indicator 3 (not synchronised), stratum 0 and reference ID 0. RFC 5905, 7.4, gives
# packets of stratum 0 a kiss code in the reference ID; this answer has none. Response.Validate looks at the stratum first, so its
# caller is told that the server wants no more requests, and not that the server does not know the time.
#
# Seen on 2026-11-27 with chrony 4.3:
#   stratum 0, leap 3, code "", validate: kiss of death received
set -euo pipefail
dir=$(mktemp -d)
cd "$dir"
apt-get download chrony >/dev/null 2>&1
dpkg -x chrony_*.deb root
cat >go.mod <<'MOD'
module finding

go 1.26

require github.com/beevik/ntp v1.6.0
MOD
cat >main.go <<'GO'
package main

import (
	"fmt"
	"log"
	"time"

	"github.com/beevik/ntp"
)

func main() {
	var r *ntp.Response
	var err error
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		if r, err = ntp.QueryWithOptions("127.0.0.1:11123", ntp.QueryOptions{Timeout: time.Second}); err == nil {
			fmt.Printf("stratum %d, leap %d, code %q, validate: %v\n", r.Stratum, r.Leap, r.KissCode, r.Validate())
			return
		}
	}
	log.Fatal(err)
}
GO
go mod tidy 2>/dev/null
go build -o ask .
printf 'port 11123\nbindaddress 127.0.0.1\nallow 127.0.0.1\ncmdport 0\npidfile %s/pid\nuser root\n' "$dir" >chrony.conf
root/usr/sbin/chronyd -x -d -f "$dir/chrony.conf" 2>log &
server=$!
trap 'kill $server; rm -rf "$dir"' EXIT
./ask | tee out
grep -qx 'stratum 0, leap 3, code "", validate: kiss of death received' out
