#!/bin/bash
# containerd/go-dmverity v0.1.0 hashes with SHA-256 for every algorithm that it does not know, if the image has no superblock.
#
# dm-verity takes any hash of the kernel, and veritysetup formats with sha384 or sha3-256. With Params.NoSuperblock, Create does not check
# the name: it returns the root hash of SHA-256 without an error. With a superblock it rejects the name. SHA512 in capitals is such a
# name, too, but only without a superblock; veritysetup takes it for SHA-512.
#
# A superblock may lack a UUID. Create writes it so if Params.UUID is unset; veritysetup verifies the image, and the library's own Verify
# rejects it.
#
# Seen on 2026-11-29 with veritysetup 2.6.1:
#   sha512:   64 octets, veritysetup the same
#   SHA512:   32 octets, those of sha256; veritysetup 64
#   sha384:   32 octets, those of sha256; veritysetup 48
#   sha3-256: 32 octets, those of sha256; veritysetup 32, others
#   no UUID:  verity: superblock missing UUID; veritysetup verifies it
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
export PATH=$PATH:/usr/sbin GOFLAGS=-mod=mod
command -v veritysetup >/dev/null || apt-get install -y --no-install-recommends cryptsetup-bin >/dev/null
cat >go.mod <<'END'
module finding
go 1.26
require github.com/containerd/go-dmverity v0.1.0
END
cat >main.go <<'END'
package main

import (
	"fmt"
	"log"
	"os"

	"github.com/containerd/go-dmverity/pkg/verity"
)

// The first argument is an algorithm, or "uuid" for an image with a superblock without a UUID.
func main() {
	p := verity.Params{HashName: os.Args[1], DataBlockSize: 4096, HashBlockSize: 4096, DataBlocks: 300, HashType: 1, NoSuperblock: true}
	if p.HashName == "uuid" {
		p.HashName, p.NoSuperblock, p.HashAreaOffset = "sha256", false, 4096
	}
	root, err := verity.Create(&p, "data", "tree")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%x\n", root)
	if !p.NoSuperblock {
		fmt.Println(verity.Verify(&verity.Params{}, "data", "tree", root))
	}
}
END
go build -o format .
truncate -s $((300 * 4096)) data
: >tree
known=$(./format sha256)
compare() { # NAME
	local library tool
	library=$(./format "$1")
	tool=$(veritysetup format --no-superblock --salt - --hash "$1" data tree2 | sed -n 's/^Root hash:[[:space:]]*//p')
	printf '%-9s %d octets, ' "$1:" $((${#library} / 2))
	case $library in
	"$tool") echo "veritysetup the same" ;;
	"$known") echo "those of sha256; veritysetup $((${#tool} / 2))$([ ${#tool} != ${#library} ] || echo ', others')" ;;
	esac
}
got=$(
	for name in sha512 SHA512 sha384 sha3-256; do compare $name; done
	{ read -r root; read -r own; } < <(./format uuid)
	veritysetup verify data tree "$root"
	echo "no UUID:  $own; veritysetup verifies it"
)
echo "$got"
want='sha512:   64 octets, veritysetup the same
SHA512:   32 octets, those of sha256; veritysetup 64
sha384:   32 octets, those of sha256; veritysetup 48
sha3-256: 32 octets, those of sha256; veritysetup 32, others
no UUID:  verity: superblock missing UUID; veritysetup verifies it'
[[ $got == "$want" ]] || { echo "the behavior has changed"; exit 1; }
