package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/orlop-os/orlop/pkg/bootenv"
	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/disk/vpd"
	"github.com/orlop-os/orlop/pkg/kernel/kmod"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/sanitize"
)

const (
	// firmwareDir exists only if UEFI firmware has started the kernel.
	firmwareDir = "/sys/firmware/efi"
	// variablesModule is the module of the file system that shows the variables of the firmware.
	variablesModule = "efivarfs"
)

// readFirmware returns what the firmware and the boot image report about this boot. It mounts the
// variables of the firmware read-only while it reads them.
func readFirmware(drivers *kmod.Index) firmware {
	if _, err := os.Stat(firmwareDir); err != nil {
		return firmware{}
	}
	f := firmware{uefi: true}
	if err := f.read(drivers); errors.Is(err, fs.ErrNotExist) {
		f.problem = "the boot image did not report its partition; after a network boot, it never does"
	} else if err != nil {
		f.problem = err.Error()
	}
	return f
}

func (f *firmware) read(drivers *kmod.Index) (err error) {
	steps, err := drivers.Plan(variablesModule)
	if err != nil {
		return err
	}
	if err := kmod.Load(steps); err != nil {
		return err
	}
	variables := mount.Mount{Source: "efivarfs", Target: bootenv.VariablesDir, Type: "efivarfs", Flags: mount.ReadOnly | mount.NoSuid | mount.NoDev | mount.NoExec}
	if err := variables.Do(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mount.Unmount(bootenv.VariablesDir)) }()
	content, err := bootenv.ReadVariable(bootenv.VariablesDir, bootenv.ImagePartition)
	if err != nil {
		return err
	}
	f.partition, err = bootenv.VariableGUID(content)
	return err
}

// describeDisk describes a disk as the kernel reports it: "8 GiB, QEMU HARDDISK, serial disk0".
func describeDisk(disk string) string {
	return describe(filepath.Join("/sys/class/block", disk))
}

// attribute returns the text of the first named sysfs attribute that exists and is not empty. Words
// are separated by one space. It returns "" if no attribute has a text.
func attribute(dir string, names ...string) string {
	for _, name := range names {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if text := strings.Join(strings.Fields(strings.ToValidUTF8(string(b), "")), " "); err == nil && text != "" {
			return text
		}
	}
	return ""
}

// describe returns the description of the disk with the sysfs directory dir.
func describe(dir string) string {
	const sector = 512 // sysfs counts in 512 bytes for every disk
	var facts []string
	if sectors, err := strconv.ParseUint(attribute(dir, "size"), 10, 54); err == nil {
		facts = append(facts, layout.FormatSize(sectors*sector))
	}
	if model := attribute(dir, "device/model"); model != "" {
		facts = append(facts, model)
	}
	serial := attribute(dir, "serial", "device/serial") // of virtio disks; of NVMe and MMC disks
	if page, err := os.ReadFile(filepath.Join(dir, "device/vpd_pg80")); serial == "" && err == nil {
		serial = vpd.Serial(page)
	}
	if serial != "" {
		facts = append(facts, "serial "+serial)
	}
	// A foreign disk chooses its texts, so control characters are removed.
	return sanitize.Text(strings.Join(facts, ", "))
}
