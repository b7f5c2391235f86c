package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/orlop-os/orlop/imager/debian"
)

// lockFile is the file with the pinned versions, relative to the working directory.
const lockFile = "imager/packages.lock"

// libraryDir is the directory of the shared libraries. The dynamic loader searches it by default.
const libraryDir = "/usr/lib/x86_64-linux-gnu"

// dynamicLoader is the path of the dynamic loader in the ELF headers of C programs.
const dynamicLoader = "/lib64/ld-linux-x86-64.so.2"

// packageFiles are the files that the image takes from Debian packages by their paths. Shared
// libraries are not in this table: addLibraries finds them in libraryPackages by the dependencies
// of the programs (DT_NEEDED).
var packageFiles = []struct {
	Package, From, To string
	Mode              fs.FileMode
}{
	{"e2fsprogs", "/usr/sbin/mke2fs", "/usr/sbin/mke2fs", 0o755},
	{"e2fsprogs", "/usr/sbin/e2fsck", "/usr/sbin/e2fsck", 0o755},
	{"e2fsprogs", "/usr/sbin/resize2fs", "/usr/sbin/resize2fs", 0o755},
	// formats and opens STATE and DATA if they are encrypted
	{"cryptsetup-bin", "/usr/sbin/cryptsetup", "/usr/sbin/cryptsetup", 0o755},
	// an installation makes the ESP with mkfs.fat
	{"dosfstools", "/usr/sbin/mkfs.fat", "/usr/sbin/mkfs.fat", 0o755},
	{"e2fsprogs", "/etc/mke2fs.conf", "/etc/mke2fs.conf", 0o644},
	// kube-proxy and the portmap plugin run nft
	{"nftables", "/usr/sbin/nft", "/usr/sbin/nft", 0o755},
	// the kubelet runs mount and umount for volumes
	{"mount", "/usr/bin/mount", "/usr/bin/mount", 0o755},
	{"mount", "/usr/bin/umount", "/usr/bin/umount", 0o755},
	// For pods with appArmorProfile RuntimeDefault, containerd runs the parser to load its own
	// default profile. Without the parser, containerd assumes that AppArmor is missing. The default
	// profile of containerd uses the policy interface abi/3.0.
	{"apparmor", "/usr/sbin/apparmor_parser", "/usr/sbin/apparmor_parser", 0o755},
	{"apparmor", "/etc/apparmor/parser.conf", "/etc/apparmor/parser.conf", 0o644},
	{"apparmor", "/etc/apparmor.d/abi/3.0", "/etc/apparmor.d/abi/3.0", 0o644},
	{"apparmor", "/usr/share/apparmor-features/features", "/usr/share/apparmor-features/features", 0o644},
	{"netbase", "/etc/protocols", "/etc/protocols", 0o644}, // nft looks protocols up by name
	{"netbase", "/etc/services", "/etc/services", 0o644},
	{"libc6", "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "/usr/lib64/ld-linux-x86-64.so.2", 0o755},
}

// libraryPackages are the packages in which addLibraries searches for shared libraries. Each
// package must contain at least one library that a program needs.
var libraryPackages = []string{
	"libc6",
	"libext2fs2t64", "libcom-err2", "libblkid1", "libuuid1", // e2fsprogs
	// cryptsetup
	"libcryptsetup12", "libpopt0", "libdevmapper1.02.1", "libjson-c5", "libssl3t64", "libudev1", "libcap2", "zlib1g", "libzstd1",
	// nft
	"libnftables1", "libnftnl11", "libmnl0", "libxtables12", "libjansson4", "libgmp10", "libedit2", "libbsd0", "libmd0", "libtinfo6",
	"libmount1", "libselinux1", "libpcre2-8-0", // mount
}

const (
	certificatesPackage = "ca-certificates"
	// the boot loader and its stub
	loaderPackage = "systemd-boot-efi"
	loaderStub    = "/usr/lib/systemd/boot/efi/linuxx64.efi.stub"
	loaderProgram = "/usr/lib/systemd/boot/efi/systemd-bootx64.efi"
)

// kernelPackages are the kernels that profiles can name.
var kernelPackages = []string{"linux-image-cloud-amd64", "linux-image-amd64"}

// extensionPackages are the packages of the extensions in extensions/. The image does not contain
// them.
var extensionPackages = []string{
	// storage
	"nfs-common", "libtirpc3t64", "libgssapi-krb5-2", "libkrb5-3", "libk5crypto3", "libkrb5support0", "libkeyutils1",
}

// wantedPackages returns the sorted names of the packages that the lock file has to contain.
func wantedPackages() []string {
	all := slices.Concat(kernelPackages, libraryPackages, extensionPackages, sysrootPackages, []string{certificatesPackage, loaderPackage})
	for _, f := range packageFiles {
		all = append(all, f.Package)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Archive reads the files of the pinned packages.
type Archive struct {
	Lock  debian.Lock
	Cache string // directory for downloads
	// source is Debian's archive of the suite in the lock.
	source *debian.Archive
	// used are the packages from which the image has files, by name, for the SBOM.
	used map[string]debian.Package
}

// NewArchive returns an archive with the packages of a lock. Downloads and package lists are below
// the directory cache.
func NewArchive(lock debian.Lock, cache string) *Archive {
	return &Archive{Lock: lock, Cache: filepath.Join(cache, "deb"), source: debian.NewArchive(lock.Suite, listsDir(cache))}
}

// listsDir is the directory of the package lists in the cache.
func listsDir(cache string) string { return filepath.Join(cache, "apt") }

// deb returns a pinned package and the path of its .deb file. It also records that the image
// contains files of the package.
func (a *Archive) deb(want string) (debian.Package, string, error) {
	p, file, err := a.fetch(want)
	if err != nil {
		return p, "", err
	}
	if a.used == nil {
		a.used = map[string]debian.Package{}
	}
	a.used[p.Name] = p
	return p, file, nil
}

// fetch returns a pinned package and the path of its .deb file. It downloads the file if the cache
// does not have it.
func (a *Archive) fetch(want string) (debian.Package, string, error) {
	p, err := a.Lock.Find(want)
	if err != nil {
		return p, "", err
	}
	files, err := a.source.Fetch([]debian.Package{p}, a.Cache)
	if err != nil {
		return p, "", err
	}
	return p, files[0], nil
}

// files returns the regular files and symbolic links of a package for which match is true, by path.
// It also records that the image contains files of the package.
func (a *Archive) files(want string, match func(name string) bool) (map[string]Node, error) {
	_, deb, err := a.deb(want)
	if err != nil {
		return nil, err
	}
	return matching(want, deb, match)
}

// matching returns the regular files and symbolic links of a .deb file for which match is true, by
// path. want is the name of the package.
func matching(want, deb string, match func(name string) bool) (map[string]Node, error) {
	found := map[string]Node{}
	err := debian.Walk(deb, func(name string, h *tar.Header, content io.Reader) error {
		if !match(name) {
			return nil
		}
		n := Node{From: want, Mode: 0o644}
		switch h.Typeflag {
		case tar.TypeReg:
			data, err := io.ReadAll(content)
			if err != nil {
				return fmt.Errorf("%s: %s: %w", want, name, err)
			}
			n.Data = data
		case tar.TypeSymlink:
			n.Target = h.Linkname
		default:
			return nil
		}
		found[name] = n
		return nil
	})
	return found, err
}

// file returns the content of a file of a package.
func (a *Archive) file(want, name string) ([]byte, error) {
	found, err := a.files(want, func(n string) bool { return n == name })
	if err != nil {
		return nil, err
	}
	n, ok := found[name]
	if !ok || n.Target != "" {
		return nil, fmt.Errorf("%s: has no file %s", want, name)
	}
	return n.Data, nil
}

// addDebian adds the files in the table packageFiles, the shared libraries that the programs need,
// and the CA certificates.
func addDebian(t Tree, a *Archive) error {
	var programs []string
	for _, f := range packageFiles {
		data, err := a.file(f.Package, f.From)
		if err != nil {
			return err
		}
		if err := t.Add(f.To, Node{Mode: f.Mode, Data: data, From: f.Package}); err != nil {
			return err
		}
		if f.Mode&0o111 != 0 {
			programs = append(programs, f.To)
		}
	}
	if err := addLibraries(t, a, programs); err != nil {
		return err
	}
	bundle, err := certificates(a)
	if err != nil {
		return err
	}
	return t.Add("/etc/ssl/certs/ca-certificates.crt", Node{Mode: 0o644, Data: bundle, From: certificatesPackage})
}

// certificates returns all CA certificates of Debian (PEM), sorted by file name.
func certificates(a *Archive) ([]byte, error) {
	found, err := a.files(certificatesPackage, func(n string) bool {
		return strings.HasPrefix(n, "/usr/share/ca-certificates/mozilla/") && strings.HasSuffix(n, ".crt")
	})
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	for _, name := range Tree(found).Names() {
		b.Write(found[name].Data)
	}
	if b.Len() == 0 {
		return nil, fmt.Errorf("%s: has no certificates where they are expected", certificatesPackage)
	}
	return b.Bytes(), nil
}

// addLibraries adds the shared libraries from libraryPackages that the programs and the libraries
// themselves need.
func addLibraries(t Tree, a *Archive, programs []string) error {
	return addLibrariesOf(t, nil, a, programs, libraryPackages)
}

// addLibrariesOf adds the shared libraries that the programs and these libraries need. It takes
// them from packages. It omits libraries that the tree base has. It fails if a needed library is in
// no package, and if a package has no needed library. The libraries are not executable, because the
// dynamic loader only maps them.
func addLibrariesOf(t, base Tree, a *Archive, programs, packages []string) error {
	available := map[string]Node{}
	for _, want := range packages {
		if err := listLibraries(available, a, want); err != nil {
			return err
		}
	}
	used := map[string]bool{}
	queue := slices.Clone(programs)
	for len(queue) > 0 {
		needs, err := needed(t[queue[0]].Data)
		if err != nil {
			return fmt.Errorf("%s: %w", queue[0], err)
		}
		for _, lib := range needs {
			name := path.Join(libraryDir, lib)
			_, there := t[name]
			if _, ours := base[name]; ours || there || lib == path.Base(dynamicLoader) {
				continue
			}
			n, ok := available[lib]
			if !ok {
				return fmt.Errorf("%s: needs %s, which is in none of the library packages (%s)", queue[0], lib, strings.Join(packages, ", "))
			}
			used[n.From] = true
			n.Mode = 0o644
			if err := t.Add(name, n); err != nil {
				return err
			}
			queue = append(queue, name)
		}
		queue = queue[1:]
	}
	for _, p := range packages {
		if !used[p] {
			return fmt.Errorf("%s: nothing needs a library of it; remove it from the library packages", p)
		}
	}
	return nil
}

// listLibraries adds the shared libraries of a package to available, by file name. A symbolic link
// is added as the library to which it refers.
func listLibraries(available map[string]Node, a *Archive, want string) error {
	found, err := a.files(want, func(n string) bool { return strings.Contains(path.Base(n), ".so") })
	if err != nil {
		return err
	}
	for name, n := range found {
		if n.Target == "" {
			available[path.Base(name)] = n
		}
	}
	for name, n := range found {
		if n.Target == "" {
			continue
		}
		if target, ok := found[path.Join(path.Dir(name), n.Target)]; ok && target.Target == "" {
			available[path.Base(name)] = target
		}
	}
	return nil
}

// needed returns the names of the shared libraries that an ELF file needs (DT_NEEDED).
func needed(data []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("is not an ELF file: %w", err)
	}
	return f.ImportedLibraries()
}
