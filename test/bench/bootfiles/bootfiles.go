// Package bootfiles makes the two files from which the baseline's machine boots: the kernel of the
// image, and an initramfs with upstream's programs. The programs are built without changes:
// Kubernetes and etcd from test/bench/baseline, the container runtime from the modules of the image
// (imager/components), so that both sides have the same versions.
//
// It does not start the machine.
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

// Spec has the inputs, relative to the working directory, which is the top of the source.
type Spec struct {
	Module     string // directory of the baseline's Go module
	Components string // directory of the Go module of the container runtime
	Lock       string // the pinned Debian packages of the image
	Cache      string // downloads of the imager
	Busybox    string // a static busybox
	Dir        string // programs and results
}

// Default returns the inputs in this repository, with the results below a directory.
func Default(dir string) Spec {
	return Spec{
		Module: "test/bench/baseline", Components: "imager/components", Lock: "imager/packages.lock",
		Cache: filepath.Join("build", "cache"), Busybox: "/bin/busybox", Dir: dir,
	}
}

// Files are the results.
type Files struct{ Kernel, Initramfs string }

// kernelPackage is the kernel of the image that is measured (profiles/qemu.yaml).
const kernelPackage = "linux-image-cloud-amd64"

// modules are the kernel modules that the guest loads.
var modules = []string{"overlay", "bridge", "veth", "br_netfilter", "nf_tables", "nf_conntrack", "nf_nat", "dummy"}

// Build makes the files. The go command skips up-to-date programs.
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

// checkStatic checks that busybox needs no library, because the guest has none.
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

// tree maps the files of the initramfs to their content. Parent directories are added by entries.
type tree map[string]boot.Entry

func (t tree) add(name string, mode fs.FileMode, content []byte) {
	t[name] = boot.Entry{Name: name, Mode: mode, Content: content}
}

// addFile adds a file of this computer.
func (t tree) addFile(name string, mode fs.FileMode, from string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	t.add(name, mode, content)
	return nil
}

// entries returns all files with the directories above them.
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

// addKernel adds the modules of the image's kernel, and returns the file of the kernel.
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
