package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// makeISO writes the boot medium, if the profile requests it. The medium has a FAT file
// system. At the standard path for firmware, this file system has the boot image of a network boot,
// which contains the root. Two entries refer to
// the same file system: El Torito's entry for UEFI, for a CD, and an entry of a partition table,
// for a USB stick.
func (b *Build) makeISO() error {
	if !slices.Contains(b.Profile.Outputs, outputISO) {
		return nil
	}
	image, err := os.ReadFile(b.out(outputNetboot))
	if err != nil {
		return err
	}
	dir := b.work("iso")
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	const mib = 1 << 20
	fat := filepath.Join(dir, "efi.img")
	size := (int64(len(image))/mib + 4) * mib // the tables of FAT need less than 4 MiB
	if err := os.WriteFile(fat, nil, 0o644); err != nil {
		return err
	}
	if err := os.Truncate(fat, size); err != nil {
		return err
	}
	if err := makeESP(fat, 0, size, b.Release.BuildTime, map[string][]byte{"/EFI/BOOT/BOOTX64.EFI": image}, b.work("")); err != nil {
		return fmt.Errorf("cannot write file system: %w", err)
	}
	c := exec.Command("xorriso", "-no_rc", "-as", "mkisofs", "-quiet", "-o", b.out(outputISO), "-V", "ORLOP",
		"--norock", "--set_all_file_dates", time.Unix(b.Release.BuildTime, 0).UTC().Format("20060102150405")+"00",
		// The size 1 means that the boot image extends to the end of the CD (UEFI 2.10, section
		// 13.3.2.1). The field is too small for the real size.
		"-e", filepath.Base(fat), "-no-emul-boot", "-boot-load-size", "1",
		"-efi-boot-part", "--efi-boot-image", dir)
	// xorriso takes all other times from SOURCE_DATE_EPOCH, and derives GUIDs from them.
	c.Env = append(os.Environ(), fmt.Sprintf("SOURCE_DATE_EPOCH=%d", b.Release.BuildTime), "TZ=UTC", "LC_ALL=C")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("xorriso: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
