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
	// firmwareDir exists if UEFI firmware started the kernel.
	firmwareDir = "/sys/firmware/efi"
	// variablesModule is the file system of the firmware's variables.
	variablesModule = "efivarfs"
)

// readFirmware returns the partition with the booted image. It mounts the variables read-only for
// this purpose only.
func readFirmware(drivers *kmod.Index) firmware {
	if _, err := os.Stat(firmwareDir); err != nil {
		return firmware{}
	}
	f := firmware{uefi: true}
	if err := f.read(drivers); errors.Is(err, fs.ErrNotExist) {
		f.problem = "the boot image did not report it; it never does from the network"
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

// attribute returns the first of several sysfs attributes that exists and is not empty, with single
// spaces between its words; empty if there is none.
func attribute(dir string, names ...string) string {
	for _, name := range names {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if text := strings.Join(strings.Fields(strings.ToValidUTF8(string(b), "")), " "); err == nil && text != "" {
			return text
		}
	}
	return ""
}

// describe reads the sysfs directory of a disk.
func describe(dir string) string {
	const sector = 512 // the unit of the kernel, independent of the disk
	var facts []string
	if sectors, err := strconv.ParseUint(attribute(dir, "size"), 10, 54); err == nil {
		facts = append(facts, layout.FormatSize(sectors*sector))
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
	// the text of a foreign disk may control the console
	return sanitize.Text(strings.Join(facts, ", "))
}
