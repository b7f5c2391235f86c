#!/bin/bash
# Go 1.26.11 rejects a directory of libraries that pkg-config names if it contains the C library's development files.
#
# Since 1.26.11 the go command reads the libraries in the directories (-L) that a package gets from pkg-config, and accepts binary
# formats only (cmd/go/internal/work/security.go, checkLinkerObjectRegion). libc.so and libm.a of the GNU C library are linker scripts
# ("GROUP ( ... )", ld(1): "If the linker can not recognize the format of an object file, it will assume that it is a linker script").
# So a sysroot with libc6-dev, used in the way of pkg-config(1) with PKG_CONFIG_SYSROOT_DIR, builds with 1.26.10 and not with 1.26.11.
# On the computer itself the same libraries are in a system directory, for which pkg-config prints no -L.
#
# Seen on 2026-11-29 with libc6-dev 2.36-9+deb12u14 and libseccomp-dev 2.5.4-1+deb12u1:
#   go1.26.10: built
#   go1.26.11: invalid linker input file in pkg-config --libs: libc.so (unrecognized binary format)
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
apt-get -qq download libc6-dev libseccomp-dev linux-libc-dev 2>/dev/null
mkdir root
for deb in *.deb; do
	dpkg-deb -x "$deb" root
	dpkg-deb -W --showformat='${Package} ${Version}\n' "$deb"
done
cat >go.mod <<'END'
module finding
go 1.26
END
cat >main.go <<'END'
package main

// #cgo pkg-config: libseccomp
// #include <seccomp.h>
import "C"

func main() { println(C.seccomp_version().major) }
END
export CGO_ENABLED=1 GOFLAGS= PKG_CONFIG_SYSROOT_DIR=$dir/root PKG_CONFIG_LIBDIR=$dir/root/usr/lib/x86_64-linux-gnu/pkgconfig
build() { # VERSION: the result of a build
	if GOTOOLCHAIN=go$1 go build -o program . 2>output; then
		echo built
	else
		sed -n "s#.*\(invalid linker input file in pkg-config --libs: \)$dir/.*/#\1#p" output
	fi
}
before=$(build 1.26.10)
after=$(build 1.26.11)
echo "go1.26.10: $before"
echo "go1.26.11: $after"
[ "$before" = built ]
[[ $after = *"(unrecognized binary format)" ]]
