// Package bootfiles makes the two files from which the baseline's machine boots: the kernel of the
// image, and an initramfs with the upstream programs. It builds the programs without changes, from
// the versions that the image has. Kubernetes and etcd come from test/bench/baseline. The container
// runtime comes from the module of the image (imager/components).
//
// The package does not start the machine.
package bootfiles

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/google/renameio/v2"

	"github.com/orlop-os/orlop/imager/boot"
	"github.com/orlop-os/orlop/imager/debian"
	"github.com/orlop-os/orlop/imager/kernel"
)

// Spec holds the inputs. All paths are relative to the working directory, which is the root of the
// source tree.
type Spec struct {
	Module     string // directory of the baseline's Go module
	Components string // directory of the Go module of the container runtime
	Lock       string // the pinned Debian packages of the image
	Cache      string // directory of the imager's downloads
	Busybox    string // a static busybox
	Dir        string // directory for the programs and the results
}

// Default returns the inputs of this repository. The programs and results are below dir.
func Default(dir string) Spec {
	return Spec{
		Module: "test/bench/baseline", Components: "imager/components", Lock: "imager/packages.lock",
		Cache: filepath.Join("build", "cache"), Busybox: "/bin/busybox", Dir: dir,
	}
}

// Files are the paths of the resulting files.
type Files struct{ Kernel, Initramfs string }

// kernelPackage is the Debian package of the kernel in the measured image (profiles/qemu.yaml).
const kernelPackage = "linux-image-cloud-amd64"

// modules are the kernel modules that the guest loads.
var modules = []string{"overlay", "bridge", "veth", "br_netfilter", "nf_tables", "nf_conntrack", "nf_nat", "dummy"}

// Build makes the kernel and the initramfs. The go command builds only programs that are not up to
// date.
func Build(ctx context.Context, s Spec) (Files, error) {
	if err := checkStatic(s.Busybox); err != nil {
		return Files{}, err
	}
	t := tree{}
	image, err := t.addKernel(s)
	if err == nil {
		err = t.addPrograms(ctx, s)
	}
	if err == nil {
		err = t.addImages(s)
	}
	if err == nil {
		err = t.addCertificates()
	}
	if err == nil {
		err = t.addSettings(s)
	}
	if err != nil {
		return Files{}, fmt.Errorf("baseline: %w", err)
	}
	content, err := boot.Initramfs(t.entries())
	if err != nil {
		return Files{}, fmt.Errorf("baseline: %w", err)
	}
	f := Files{Kernel: image, Initramfs: filepath.Join(s.Dir, "initramfs.zst")}
	if err := renameio.WriteFile(f.Initramfs, content, 0o644); err != nil {
		return Files{}, fmt.Errorf("baseline: cannot write its initramfs: %w", err)
	}
	return f, nil
}

// checkStatic fails if busybox is not statically linked, because the guest has no shared libraries.
func checkStatic(file string) error {
	const remedy = "install Debian's package busybox-static"
	f, err := elf.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("baseline: %s does not exist; %s", file, remedy)
	}
	if err != nil {
		return fmt.Errorf("baseline: %s: %w; %s", file, err, remedy)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("baseline: %s needs shared libraries, which the guest does not have; %s", file, remedy)
		}
	}
	return nil
}

// tree maps the path of each file of the initramfs to its entry. The method entries adds the parent
// directories.
type tree map[string]boot.Entry

func (t tree) add(name string, mode fs.FileMode, content []byte) {
	t[name] = boot.Entry{Name: name, Mode: mode, Content: content}
}

// addFile adds a copy of the file source of this computer to the initramfs, with the given name and
// mode.
func (t tree) addFile(name string, mode fs.FileMode, source string) error {
	content, err := os.ReadFile(source)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	t.add(name, mode, content)
	return nil
}

// entries returns all files and their parent directories.
func (t tree) entries() []boot.Entry {
	all := make([]boot.Entry, 0, 2*len(t))
	seen := map[string]bool{".": true}
	for name, e := range t {
		all = append(all, e)
		for dir := path.Dir(name); !seen[dir]; dir = path.Dir(dir) {
			seen[dir] = true
			if _, listed := t[dir]; !listed {
				all = append(all, boot.Entry{Name: dir, Mode: fs.ModeDir | 0o755})
			}
		}
	}
	return all
}

// addKernel adds the kernel modules that the guest loads, and returns the path of the kernel image
// on this computer.
func (t tree) addKernel(s Spec) (string, error) {
	lock, err := debian.ReadLock(s.Lock)
	if err != nil {
		return "", err
	}
	p, err := lock.Find(kernelPackage)
	if err != nil {
		return "", err
	}
	archive := debian.NewArchive(lock.Suite, filepath.Join(s.Cache, "apt"))
	files, err := archive.Fetch([]debian.Package{p}, filepath.Join(s.Cache, "deb"))
	if err != nil {
		return "", err
	}
	k, err := kernel.Unpack(files[0], p.SHA256, filepath.Join(s.Cache, "kernel"))
	if err != nil {
		return "", err
	}
	selected, err := k.Select(modules)
	if err != nil {
		return "", err
	}
	content, err := k.Tree(selected, filepath.Join(s.Dir, "modules"))
	if err != nil {
		return "", err
	}
	for name, from := range content {
		if err := t.addFile(path.Join("lib/modules", k.Release, name), 0o644, from); err != nil {
			return "", err
		}
	}
	return k.Image, nil
}
