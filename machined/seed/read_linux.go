package seed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/siderolabs/go-blockdevice/v2/blkid"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/mount"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/plainfile"
)

// sysBlock has one symbolic link per disk and partition.
const sysBlock = "/sys/class/block"

// List looks for labelled media on all devices. What cannot be read (an empty drive) is none.
func List(ctx context.Context) ([]Device, error) {
	entries, err := os.ReadDir(sysBlock)
	if err != nil {
		return nil, fmt.Errorf("media: cannot list: %w", err)
	}
	var found []Device
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("media: cannot list: %w", err)
		}
		if slices.ContainsFunc([]string{"loop", "ram", "zram", "dm-"}, func(made string) bool { return strings.HasPrefix(e.Name(), made) }) {
			continue
		}
		d := Device{Path: "/dev/" + e.Name()}
		if d.Kind, d.Label = probe(d.Path); !known(d.Kind, d.Label) {
			continue
		}
		if d.Disk, err = wholeOf(e.Name()); err != nil {
			return nil, err
		}
		found = append(found, d)
	}
	// The whole device before its partitions.
	slices.SortFunc(found, func(a, b Device) int { return strings.Compare(a.Path, b.Path) })
	return found, nil
}

// probe returns what file system a device holds, and its label.
func probe(device string) (kind, label string) {
	f, err := os.Open(device)
	if err != nil {
		return "", ""
	}
	defer f.Close()
	info, err := blkid.Probe(f, blkid.WithSkipLocking(true))
	if err != nil || info.Label == nil {
		return "", ""
	}
	return info.Name, strings.TrimSpace(*info.Label)
}

// wholeOf finds the disk of a partition by its folder in sysfs, which lies in the disk's; a disk is its own.
func wholeOf(name string) (string, error) {
	folder, err := filepath.EvalSymlinks(filepath.Join(sysBlock, name))
	if err != nil {
		return "", fmt.Errorf("media: %w", err)
	}
	if _, err := os.Stat(filepath.Join(folder, "partition")); err == nil {
		folder = filepath.Dir(folder)
	}
	return "/dev/" + filepath.Base(folder), nil
}

// Document is a configuration as it was found.
type Document struct {
	Name string // "/dev/sdb1:machine.yaml"
	Text []byte
}

// mountPoint is where a medium is mounted while it is read.
const mountPoint = paths.Run + "/medium"

// Find reads the configuration of a labelled medium. The document is nil when there is no such medium. load loads what the kernel
// needs to mount one.
func Find(ctx context.Context, load func(modules ...string) error) (*Document, error) {
	devices, err := List(ctx)
	if err != nil {
		return nil, err
	}
	device, file, err := choose(devices)
	if err != nil || file == "" {
		return nil, err
	}
	text, err := read(device, file, load)
	if err != nil {
		return nil, fmt.Errorf("%s (%s): %w", device.Path, device.Label, err)
	}
	return &Document{Name: device.Path + ":" + file, Text: text}, nil
}

func read(d Device, file string, load func(modules ...string) error) (text []byte, err error) {
	modules := []string{"isofs"}
	if d.Kind == "vfat" {
		modules = mount.FATModules()
	}
	if err := load(modules...); err != nil {
		return nil, err
	}
	m := mount.Mount{Source: d.Path, Target: mountPoint, Type: d.Kind, Flags: mount.ReadOnly | mount.NoSuid | mount.NoDev | mount.NoExec}
	if err := m.Do(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, mount.Unmount(mountPoint)) }()
	return plainfile.Read(mountPoint, file, config.MaxSize)
}
