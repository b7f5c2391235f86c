package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/orlop-os/orlop/pkg/disklayout"
	"github.com/orlop-os/orlop/pkg/efivar"
	"github.com/orlop-os/orlop/pkg/kmod"
	"github.com/orlop-os/orlop/pkg/mount"
	"github.com/orlop-os/orlop/pkg/sanitize"
	"github.com/orlop-os/orlop/pkg/vpd"
)

const (
	// firmwareFolder exists if the kernel was started by UEFI firmware.
	firmwareFolder = "/sys/firmware/efi"
	// variablesModule is the file system that shows the firmware's variables.
	variablesModule = "efivarfs"
)

// askFirmware finds out which partition the firmware has booted. The variables are mounted for that
// alone, and read-only.
func askFirmware(drivers *kmod.Index) firmware {
	if _, err := os.Stat(firmwareFolder); err != nil {
		return firmware{}
	}
	f := firmware{uefi: true}
	if err := f.read(drivers); errors.Is(err, fs.ErrNotExist) {
		f.problem = "the boot loader has not said it; it does not for an image that came over the network"
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
	variables := mount.Mount{Source: "efivarfs", Target: efivar.Dir, Type: "efivarfs", Flags: mount.ReadOnly | mount.NoSuid | mount.NoDev | mount.NoExec}
	if err := variables.Do(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mount.Unmount(efivar.Dir)) }()
	content, err := efivar.Read(efivar.Dir, efivar.Partition)
	if err != nil {
		return err
	}
	f.partition, err = efivar.GUID(content)
	return err
}

// describeDisk says what a disk is, as far as the kernel knows: "8 GiB, QEMU HARDDISK, serial
// disk0".
func describeDisk(disk string) string {
	return describe(filepath.Join("/sys/class/block", disk))
}

// attribute is the first of some attributes in sysfs that is there and not empty, with single
// spaces between its words; empty: none is.
func attribute(dir string, names ...string) string {
	for _, name := range names {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if text := strings.Join(strings.Fields(strings.ToValidUTF8(string(b), "")), " "); err == nil && text != "" {
			return text
		}
	}
	return ""
}

// describe reads a disk's folder in sysfs.
func describe(dir string) string {
	const sector = 512 // in which the kernel counts, whatever the disk has
	var facts []string
	if sectors, err := strconv.ParseUint(attribute(dir, "size"), 10, 54); err == nil {
		facts = append(facts, disklayout.FormatSize(sectors*sector))
	}
	if model := attribute(dir, "device/model"); model != "" {
		facts = append(facts, model)
	}
	serial := attribute(dir, "serial", "device/serial") // virtio; NVMe, MMC
	if page, err := os.ReadFile(filepath.Join(dir, "device/vpd_pg80")); serial == "" && err == nil {
		serial = vpd.Serial(page)
	}
	if serial != "" {
		facts = append(facts, "serial "+serial)
	}
	// a foreign disk may say anything, to the console too
	return sanitize.Text(strings.Join(facts, ", "))
}
