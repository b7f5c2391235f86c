#!/bin/bash
# go-blockdevice v2.0.25 reads the volume label of an ISO 9660 image of level 4 as UTF-16.
#
# mkisofs writes an enhanced volume descriptor (ISO 9660:1999) beside the primary one for level 4. It has the type of a Joliet
# descriptor, and its texts are single bytes. The library takes the label of the last descriptor and decodes it as Joliet's UTF-16,
# so "cidata" comes out as three ideographs. blkid of util-linux prints cidata for both images.
#
# Seen on 2026-11-27 with xorriso 1.5.4:
#   level 3: iso9660 "cidata"
#   level 4: iso9660 "捩摡瑡†††††††††††††"
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
command -v xorriso >/dev/null || apt-get install -y --no-install-recommends xorriso >/dev/null
cat >go.mod <<'MOD'
module finding

go 1.26

require github.com/siderolabs/go-blockdevice/v2 v2.0.25
MOD
cat >main.go <<'GO'
package main

import (
	"fmt"
	"log"
	"os"

	"github.com/siderolabs/go-blockdevice/v2/blkid"
)

func main() {
	info, err := blkid.ProbePath(os.Args[1], blkid.WithSkipLocking(true))
	if err != nil || info.Label == nil {
		log.Fatal("no label: ", err)
	}
	fmt.Printf("%s %q\n", info.Name, *info.Label)
}
GO
go mod tidy 2>/dev/null
go build -o probe .
mkdir content
echo text >content/user-data
for level in 3 4; do
	xorriso -as mkisofs -quiet -iso-level "$level" -V cidata -o "$level.iso" content 2>/dev/null
	echo "level $level: $(./probe "$level.iso")"
done
test "$(./probe 3.iso)" = 'iso9660 "cidata"'
test "$(./probe 4.iso)" = 'iso9660 "捩摡瑡†††††††††††††"'
