package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/bootenv"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/paths"
)

// loopModule is the kernel module that provides block devices for files.
const loopModule = "loop"

// attachRoot creates a read-only block device for the root in the initramfs. The block device needs
// little memory: the kernel can drop its page cache, and the file itself is in memory already.
func attachRoot() (choice, error) {
	root := path.Join(bootenv.MediumDir, path.Base(paths.SystemRoot))
	file, err := os.Open(root)
	if err != nil {
		return choice{}, fmt.Errorf("the boot image does not contain the root: %w", err)
	}
	defer file.Close()
	device, err := mount.AttachLoop(file, unix.LO_FLAGS_READ_ONLY)
	if err != nil {
		return choice{}, err
	}
	defer device.Close()
	return choice{device: device.Name()}, nil
}

// keepSystem mounts the files of the boot image below /run, where they stay visible after
// switchRoot.
func keepSystem() error {
	return mount.Bind(bootenv.MediumDir, paths.System, mount.ReadOnly|mount.NoSuid|mount.NoDev|mount.NoExec)
}

// keepSignatures copies the section .pcrsig of the boot image to /run. systemd's stub passes it on
// as a file of the initramfs (systemd-stub(7)). A boot image without the section has no such file.
func keepSignatures() error {
	const file, most = "/.extra/tpm2-pcr-signature.json", 64 << 10
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(paths.Run, 0o755); err != nil {
		return err
	}
	return os.WriteFile(paths.PCRSignatures, content, 0o600)
}
