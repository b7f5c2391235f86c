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

// staticLibraries are the packages of the C libraries that are linked into programs with C code.
// They are from the image's Debian, also if an older Debian builds the image: a filter for system
// calls can allow only the calls that libseccomp knows by name, and new versions know more of them.
// The compiler and its library (libgcc) are those of the computer.
var staticLibraries = []string{"libc6-dev", "libseccomp-dev"}

// sysrootPackages are the packages of a sysroot: the libraries, and the headers of the kernel.
var sysrootPackages = append(slices.Clone(staticLibraries), "linux-libc-dev")

// sysroot is a directory with the files of sysrootPackages. Its compiler uses these files instead
// of the files of the computer.
type sysroot struct {
	dir string // absolute
	key string // hexadecimal digest of the packages
}

// newSysroot unpacks the packages into a directory below the cache, once for each set of versions.
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

// unpackDevelopment unpacks headers and libraries of a package. Shared libraries are left out: here
// their names are scripts of the linker and links, which lead to files of other packages.
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

// environment returns the variables with which the go command compiles and links C code against the
// sysroot. The directory bin gets the compiler.
//
// The compiler is a script with the name gcc, which adds options with paths. As flags of the go
// command, these paths would change the build ID of the program. The option --sysroot alone is not
// enough: gcc searches the libraries of the computer first, and only the option -B precedes them.
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
		// The go command does not notice a change of a C library, but a macro with another name.
		"CGO_CFLAGS=-O2 -DORLOP_SYSROOT_" + s.key,
		"CGO_LDFLAGS=-static",
		"PKG_CONFIG_LIBDIR=" + filepath.Join(libraries, "pkgconfig"), "PKG_CONFIG_PATH=", "PKG_CONFIG_SYSROOT_DIR=",
	}, nil
}

// quote makes a text a word of the shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
