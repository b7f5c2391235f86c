#!/bin/bash
# go-blockdevice v2.0.32 allocates a GPT partition inside another one if the partitions' numbers are not in the order of the disk.
#
# GPT requires no order: partition 1 may lie behind partition 2, as after sfdisk or sgdisk has used a gap. AllocatePartition takes the
# space between neighbors in the list of entries, which is in the order of the numbers. So the space before partition 1 includes
# partition 2. The library reports no error, and Write writes the overlap.
#
# If the numbers are in the order of the disk, a new partition in a gap takes the number of the partition behind the gap, and each
# partition behind it gets the next number: /dev/sda2 becomes /dev/sda3.
#
# Seen on 2026-11-29 with sfdisk of util-linux 2.38.1:
#   one behind two:       1 new 2048-18431, 2 one 81920-102399, 3 two 2048-38911
#   gap before partition: 1 one 2048-4095, 2 new 4096-20479, 3 two 40960-118783
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
export PATH=$PATH:/usr/sbin GOFLAGS=-mod=mod
command -v sfdisk >/dev/null || apt-get install -y --no-install-recommends fdisk >/dev/null
cat >go.mod <<'END'
module finding
go 1.26
require github.com/siderolabs/go-blockdevice/v2 v2.0.32
END
cat >main.go <<'END'
package main

import (
	"log"
	"os"

	"github.com/google/uuid"
	"github.com/siderolabs/go-blockdevice/v2/partitioning/gpt"
)

// disk is a file without a kernel's view of it.
type disk struct{ *os.File }

func (d disk) GetSize() uint64                                 { return 64 << 20 }
func (d disk) GetSectorSize() uint                             { return 512 }
func (d disk) GetIOSize() (uint, error)                        { return 512, nil }
func (d disk) GetKernelLastPartitionNum() (int, error)         { return 0, nil }
func (d disk) KernelPartitionAdd(int, uint64, uint64) error    { return nil }
func (d disk) KernelPartitionResize(int, uint64, uint64) error { return nil }
func (d disk) KernelPartitionDelete(int) error                 { return nil }

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	f, err := os.OpenFile("image", os.O_RDWR, 0)
	check(err)
	t, err := gpt.Read(disk{f})
	check(err)
	_, _, err = t.AllocatePartition(8<<20, "new", uuid.MustParse("0fc63daf-8483-4772-8e79-3d69d8477de4"))
	check(err)
	check(t.Write())
}
END
go build -o add .
added() { # START SIZE START SIZE: of partitions 1 and 2; prints the table with the new partition
	rm -f image
	truncate -s 64M image
	printf 'label: gpt\n1: start=%s, size=%s, name=one\n2: start=%s, size=%s, name=two\n' "$@" | sfdisk -q image
	./add
	sfdisk -d image | sed -nE 's/^image([0-9]) : start= *([0-9]+), size= *([0-9]+).*name="(.*)".*/\1 \2 \3 \4/p' |
		awk '{ printf "%s%s %s %s-%s", sep, $1, $4, $2, $2 + $3 - 1; sep = ", " }'
}
order=$(added 81920 20480 2048 36864)
gap=$(added 2048 2048 40960 77824)
echo "one behind two:       $order"
echo "gap before partition: $gap"
want='1 new 2048-18431, 2 one 81920-102399, 3 two 2048-38911
1 one 2048-4095, 2 new 4096-20479, 3 two 40960-118783'
[[ $order$'\n'$gap == "$want" ]] || { echo "the behavior has changed"; exit 1; }
