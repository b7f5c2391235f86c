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

// libraryDir is the directory of the C programs' libraries, a default of the dynamic loader.
const libraryDir = "/usr/lib/x86_64-linux-gnu"

// loader is the dynamic loader in the headers of the C programs.
const loader = "/lib64/ld-linux-x86-64.so.2"

// taken are the files from Debian packages that are listed by name. Libraries are not listed: they
// are found in libraryPackages by the programs' dependencies (DT_NEEDED).
var taken = []struct {
	Package, From, To string
	Mode              fs.FileMode
}{
	{"e2fsprogs", "/usr/sbin/mke2fs", "/usr/sbin/mke2fs", 0o755},
	{"e2fsprogs", "/usr/sbin/e2fsck", "/usr/sbin/e2fsck", 0o755},
	{"e2fsprogs", "/usr/sbin/resize2fs", "/usr/sbin/resize2fs", 0o755},
	// an installation makes the ESP with it
	{"dosfstools", "/usr/sbin/mkfs.fat", "/usr/sbin/mkfs.fat", 0o755},
	{"e2fsprogs", "/etc/mke2fs.conf", "/etc/mke2fs.conf", 0o644},
	// kube-proxy and the portmap plugin run it
	{"nftables", "/usr/sbin/nft", "/usr/sbin/nft", 0o755},
	{"mount", "/usr/bin/mount", "/usr/bin/mount", 0o755}, // the kubelet runs it for volumes
	{"mount", "/usr/bin/umount", "/usr/bin/umount", 0o755},
	// containerd runs it to load the profile of pods with the runtime's default profile
	// (appArmorProfile: RuntimeDefault), and treats AppArmor as missing without it. The profile is
	// for this version of the interface.
	{"apparmor", "/usr/sbin/apparmor_parser", "/usr/sbin/apparmor_parser", 0o755},
	{"apparmor", "/etc/apparmor/parser.conf", "/etc/apparmor/parser.conf", 0o644},
	{"apparmor", "/etc/apparmor.d/abi/3.0", "/etc/apparmor.d/abi/3.0", 0o644},
	{"apparmor", "/usr/share/apparmor-features/features", "/usr/share/apparmor-features/features", 0o644},
	{"netbase", "/etc/protocols", "/etc/protocols", 0o644}, // nft looks protocols up by name
	{"netbase", "/etc/services", "/etc/services", 0o644},
	{"libc6", "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "/usr/lib64/ld-linux-x86-64.so.2", 0o755},
}

// libraryPackages are searched for shared libraries. Each must contain at least one used library.
var libraryPackages = []string{
	"libc6",
	"libext2fs2t64", "libcom-err2", "libblkid1", "libuuid1", // e2fsprogs
	// nft
	"libnftables1", "libnftnl11", "libmnl0", "libxtables12", "libjansson4", "libgmp10", "libedit2", "libbsd0", "libmd0", "libtinfo6",
	"libmount1", "libselinux1", "libpcre2-8-0", // mount
}

const (
	certificatesPackage = "ca-certificates"
	loaderPackage       = "systemd-boot-efi"
	loaderStub          = "/usr/lib/systemd/boot/efi/linuxx64.efi.stub"
	loaderProgram       = "/usr/lib/systemd/boot/efi/systemd-bootx64.efi"
)

// kernelPackages are the kernels that profiles can name.
var kernelPackages = []string{"linux-image-cloud-amd64", "linux-image-amd64"}

// extensionPackages are the packages of the extensions in extensions/. The image has none of them.
var extensionPackages = []string{
	// storage
	"nfs-common", "libtirpc3t64", "libgssapi-krb5-2", "libkrb5-3", "libk5crypto3", "libkrb5support0", "libkeyutils1",
}

// wantedPackages returns the packages of the lock file.
func wantedPackages() []string {
	all := slices.Concat(kernelPackages, libraryPackages, extensionPackages, sysrootPackages, []string{certificatesPackage, loaderPackage})
	for _, f := range taken {
		all = append(all, f.Package)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Archive reads the files of the pinned packages.
type Archive struct {
	Lock  debian.Lock
	Cache string // directory for downloads
	// source is the archive of the lock's suite.
	source *debian.Archive
	// used collects the packages that files were taken from, for the SBOM.
	used map[string]debian.Package
}

// NewArchive returns the packages of a lock. Downloads and package lists are below the directory
// cache.
func NewArchive(lock debian.Lock, cache string) *Archive {
	return &Archive{Lock: lock, Cache: filepath.Join(cache, "deb"), source: debian.NewArchive(lock.Suite, listsDir(cache))}
}

// listsDir is the directory of the package lists in the cache.
func listsDir(cache string) string { return filepath.Join(cache, "apt") }

// deb returns a package and its .deb file. Its files become a part of the image.
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

// fetch returns a package and its .deb file.
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

// files returns the regular files and symbolic links of a package with names that match.
func (a *Archive) files(want string, match func(name string) bool) (map[string]Node, error) {
	_, deb, err := a.deb(want)
	if err != nil {
		return nil, err
	}
	return matching(want, deb, match)
}

// matching returns the regular files and symbolic links of a .deb file with names that match.
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

// file returns one file of a package.
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

// addDebian adds all files of the table, the libraries that the programs need, and the CA bundle.
func addDebian(t Tree, a *Archive) error {
	var programs []string
	for _, f := range taken {
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

// certificates returns Debian's bundle of CA certificates: all of them, in the order of their
// names.
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

// addLibraries adds the shared libraries of the programs and of the libraries themselves. Each
// library package must contain at least one of them.
func addLibraries(t Tree, a *Archive, programs []string) error {
	return addLibrariesOf(t, nil, a, programs, libraryPackages)
}

// addLibrariesOf adds the shared libraries of the programs that the tree base does not have, from
// these packages. They are not executable, because the loader only maps them.
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
			if _, ours := base[name]; ours || there || lib == path.Base(loader) {
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

// listLibraries adds the shared libraries of a package to available, by name. A link to a library
// counts as the library.
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

// needed returns the names of the shared libraries that an ELF file names.
func needed(data []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("is not an ELF file: %w", err)
	}
	return f.ImportedLibraries()
}
