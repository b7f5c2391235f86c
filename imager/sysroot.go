package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/orlop-os/orlop/imager/debian"
)

// staticLibraries are the packages of the C libraries that the linker adds to programs with C code.
// They are from the image's suite of Debian, even if the building computer has an older suite. This
// matters for libseccomp: a filter for system calls can only allow calls that libseccomp knows by
// name, and newer versions know more calls. The compiler and its library (libgcc) are from the
// computer.
var staticLibraries = []string{"libc6-dev", "libseccomp-dev"}

// sysrootPackages are the packages of a sysroot: the static libraries, and the headers of the
// kernel.
var sysrootPackages = append(slices.Clone(staticLibraries), "linux-libc-dev")

// sysroot is a directory with the files of sysrootPackages. A compiler with the variables of
// environment uses these files instead of the files of the computer.
type sysroot struct {
	dir string // absolute
	key string // hexadecimal digest of the packages
}

// newSysroot returns the sysroot of the pinned packages. It unpacks each set of versions only once,
// into a directory below the cache.
func newSysroot(a *Archive, cache string) (sysroot, error) {
	sum := sha256.New()
	for _, want := range sysrootPackages {
		p, err := a.Lock.Find(want)
		if err != nil {
			return sysroot{}, err
		}
		fmt.Fprintln(sum, p.Name, p.SHA256)
	}
	key := hex.EncodeToString(sum.Sum(nil)[:16])
	dir, err := filepath.Abs(filepath.Join(cache, "sysroot", key))
	if err != nil {
		return sysroot{}, err
	}
	err = debian.FillOnce(dir, func(dir string) error {
		for _, want := range sysrootPackages {
			if err := a.unpackDevelopment(want, dir); err != nil {
				return err
			}
		}
		return nil
	})
	return sysroot{dir: dir, key: key}, err
}

// unpackDevelopment unpacks the headers and the static libraries of a package. It omits files with
// the suffix .so. In these packages they are linker scripts, and symbolic links to files of other
// packages.
func (a *Archive) unpackDevelopment(want, dir string) error {
	_, deb, err := a.fetch(want)
	if err != nil {
		return err
	}
	files, err := matching(want, deb, func(name string) bool {
		return strings.HasPrefix(name, "/usr/include/") || strings.HasPrefix(name, "/usr/lib/") && path.Ext(name) != ".so"
	})
	if err != nil {
		return err
	}
	for name, n := range files {
		to := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if n.Target != "" {
			err = os.Symlink(n.Target, to)
		} else {
			err = os.WriteFile(to, n.Data, 0o644)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", want, err)
		}
	}
	return nil
}

// environment writes the compiler to the directory bin. It returns the variables with which the go
// command compiles and links C code against the sysroot.
//
// The compiler is a script with the name gcc, which calls the gcc of the computer with two more
// options. These options contain paths. As flags of the go command, the paths would change the
// build ID of the program. The option -B is necessary, because with --sysroot alone gcc searches
// the libraries of the computer first.
func (s sysroot) environment(bin string) ([]string, error) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		return nil, err
	}
	if bin, err = filepath.Abs(bin); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return nil, err
	}
	libraries := filepath.Join(s.dir, "usr/lib/x86_64-linux-gnu")
	script := fmt.Sprintf("#!/bin/sh\nexec %s --sysroot=%s -B%s \"$@\"\n", quote(gcc), quote(s.dir), quote(libraries))
	if err := os.WriteFile(filepath.Join(bin, "gcc"), []byte(script), 0o755); err != nil {
		return nil, err
	}
	return []string{
		"PATH=" + bin + string(filepath.ListSeparator) + os.Getenv("PATH"),
		"CC=gcc",
		// The go command does not notice that a C library has changed. It compiles the code again
		// if the name of this macro changes, so the name contains the key of the sysroot.
		"CGO_CFLAGS=-O2 -DORLOP_SYSROOT_" + s.key,
		"CGO_LDFLAGS=-static",
		"PKG_CONFIG_LIBDIR=" + filepath.Join(libraries, "pkgconfig"), "PKG_CONFIG_PATH=", "PKG_CONFIG_SYSROOT_DIR=",
	}, nil
}

// quote quotes a text as a single word of the shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
