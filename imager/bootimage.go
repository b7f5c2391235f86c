package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/orlop-os/orlop/imager/boot"
	signing "github.com/orlop-os/orlop/imager/secureboot"
	"github.com/orlop-os/orlop/pkg/attest"
	"github.com/orlop-os/orlop/pkg/bootenv"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/secureboot"
	"github.com/orlop-os/orlop/pkg/verity"
)

// bootPieces are the common parts of all boot images of a build.
type bootPieces struct {
	stub, kernel, initramfs []byte
}

func (p bootPieces) parts() []Part {
	return []Part{
		{Name: "loader stub", Bytes: int64(len(p.stub))},
		{Name: "kernel", Bytes: int64(len(p.kernel))},
		{Name: "initramfs, compressed", Bytes: int64(len(p.initramfs))},
	}
}

// makeUKI makes the initramfs and the unified kernel image. It also writes the files of keepKernel.
func (b *Build) makeUKI() error {
	var err error
	if b.pieces.kernel, err = os.ReadFile(b.kernel.Image); err != nil {
		return err
	}
	if b.pieces.initramfs, err = b.initramfs(); err != nil {
		return err
	}
	// systemd-boot lists only images with the section .osrel.
	release, err := b.bootRelease()
	if err != nil {
		return err
	}
	if b.uki, err = b.bootImage(b.commandLine(), b.pieces.initramfs, boot.Section{Name: ".osrel", Content: release}); err != nil {
		return err
	}
	if err := os.WriteFile(b.out("orlop.efi"), b.uki, 0o644); err != nil {
		return err
	}
	return b.keepKernel()
}

// bootRelease returns the content of the section .osrel. Besides the fields of os-release(5), it
// has the digest of the boot loader and the digests of the variables of Secure Boot. A machine
// measures the loader and the variables, and an attestation compares the measurements with these
// digests (0121).
func (b *Build) bootRelease() ([]byte, error) {
	loader, err := b.loader()
	if err != nil {
		return nil, err
	}
	parsed, err := secureboot.ParseImage(bytes.NewReader(loader), int64(len(loader)))
	if err != nil {
		return nil, fmt.Errorf("boot loader: %w", err)
	}
	files, err := b.Profile.SecureBoot.enrollmentFiles()
	if err != nil {
		return nil, err
	}
	variables := map[string][]byte{}
	for name, file := range files {
		if variables[strings.TrimSuffix(name, ".auth")], err = signing.Content(file); err != nil {
			return nil, fmt.Errorf("secureBoot.enroll: %s: %w", name, err)
		}
	}
	return slices.Concat(osRelease(b.Release), attest.Fields(parsed.Digest, variables)), nil
}

// bootImage makes a unified kernel image. The additional sections in the parameter more precede the
// other sections. bootImage signs the image, and the value of PCR 11, if the profile has a key for
// Secure Boot.
func (b *Build) bootImage(commandLine string, initramfs []byte, more ...boot.Section) ([]byte, error) {
	sections, err := b.signPCR(append(more, []boot.Section{
		{Name: ".cmdline", Content: []byte(commandLine)},
		{Name: ".uname", Content: []byte(b.kernel.Release)},
		{Name: ".initrd", Content: initramfs},
		// .linux is the last section, because the kernel runs in place and can use memory beyond
		// its size in the file.
		{Name: ".linux", Content: b.pieces.kernel},
	}...))
	if err != nil {
		return nil, err
	}
	image, err := boot.UKI(b.pieces.stub, sections)
	if err != nil {
		return nil, err
	}
	return b.sign(image)
}

// makeNetboot makes the boot image that contains its root, if the profile requests this image or a
// boot medium. Its initramfs is the initramfs of the disk, followed by a second archive with the
// files for an installation. Its command line has an additional argument.
//
// The image has no section .osrel: with the section, the stub would copy the whole initramfs. The
// section is not necessary, because no boot loader lists this image.
func (b *Build) makeNetboot() error {
	if !slices.Contains(b.Profile.Outputs, outputNetboot) && !slices.Contains(b.Profile.Outputs, outputISO) {
		return nil
	}
	root, err := os.ReadFile(b.out("root.img"))
	if err != nil {
		return err
	}
	loader, err := b.loader()
	if err != nil {
		return err
	}
	systemDir := strings.TrimPrefix(bootenv.MediumDir, "/")
	entries := []boot.Entry{{Name: systemDir, Mode: fs.ModeDir | 0o755}}
	files := map[string][]byte{paths.SystemRoot: root, paths.SystemUKI: b.uki, paths.SystemLoader: loader}
	if b.statement != nil {
		files[paths.SystemStatement] = b.statement
	}
	if err := b.addEnrollment(files); err != nil {
		return err
	}
	for place, content := range files {
		entries = append(entries, boot.Entry{Name: path.Join(systemDir, path.Base(place)), Mode: 0o644, Content: content})
	}
	system, err := boot.Initramfs(entries)
	if err != nil {
		return err
	}
	image, err := b.bootImage(b.commandLine()+" "+bootenv.MediumArgument+"="+bootenv.MediumMemory, slices.Concat(b.pieces.initramfs, system))
	if err != nil {
		return err
	}
	return os.WriteFile(b.out(outputNetboot), image, 0o644)
}

// commandLine returns the command line of the kernel: the arguments of the profile, and the
// argument with the root hash.
func (b *Build) commandLine() string {
	return strings.Join(append(slices.Clone(b.Profile.Kernel.Arguments), verity.Argument+"="+b.params.String()), " ")
}

// keepKernel writes the kernel, the initramfs and the modules of the root to the directory kernel/
// of the artifacts. Tests use them to boot an initramfs of their own.
func (b *Build) keepKernel() error {
	dir := b.out("kernel")
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	modules := Tree{}
	prefix := "/usr/lib/modules/" + b.kernel.Release + "/"
	for name, n := range b.tree {
		if strings.HasPrefix(name, prefix) && !n.Dir {
			if err := modules.Add("/modules/"+strings.TrimPrefix(name, "/usr/lib/modules/"), n); err != nil {
				return err
			}
		}
	}
	if err := modules.Write(dir); err != nil {
		return err
	}
	for name, data := range map[string][]byte{"vmlinuz": b.pieces.kernel, "initramfs": b.pieces.initramfs, "release": []byte(b.kernel.Release + "\n")} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// initramfs returns the archive with init, kernel modules, and the list of modules that init loads
// first.
func (b *Build) initramfs() ([]byte, error) {
	t := Tree{}
	for _, dir := range []string{"/dev", "/proc", "/sys", "/run", "/sysroot"} {
		if err := t.Add(dir, Node{Dir: true, Mode: 0o755}); err != nil {
			return nil, err
		}
	}
	if err := t.Add("/init", Node{Mode: 0o755, Source: b.built["init"]}); err != nil {
		return nil, err
	}
	k := b.Profile.Kernel
	files, err := b.kernel.Select(slices.Concat(k.Initramfs, k.Drivers))
	if err != nil {
		return nil, err
	}
	modules, err := b.kernel.Tree(files, b.work("initramfs"))
	if err != nil {
		return nil, err
	}
	if err := addModules(t, b.kernel.Release, modules); err != nil {
		return nil, err
	}
	list := strings.Join(b.kernel.Names(k.Initramfs), "\n") + "\n"
	if err := t.Add("/usr/lib/orlop/modules.list", Node{Mode: 0o644, Data: []byte(list)}); err != nil {
		return nil, err
	}
	// The archive has /dev/console, because the kernel opens it for init before any mount.
	entries := []boot.Entry{{Name: "dev/console", Mode: fs.ModeDevice | fs.ModeCharDevice | 0o600, Major: 5, Minor: 1}}
	for name, n := range t {
		e := boot.Entry{Name: name[1:], Mode: n.Mode}
		if n.Dir {
			e.Mode |= fs.ModeDir
		} else if e.Content, err = n.Read(); err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	return boot.Initramfs(entries)
}
