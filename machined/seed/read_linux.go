package seed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disk/parttable"
	"github.com/orlop-os/orlop/pkg/disk/superblock"
	"github.com/orlop-os/orlop/pkg/diskprobe"
)

// Prober reads the labels and files of disks. *diskprobe.Prober implements it.
type Prober interface {
	All(ctx context.Context, devices []diskprobe.Device, fresh diskprobe.Freshness) []diskprobe.DeviceResult
	File(ctx context.Context, d diskprobe.Device, f diskprobe.File) (diskprobe.Result, error)
}

// List returns the file systems with a known label on all disks. It skips disks that it cannot
// read, for example an empty drive.
func List(ctx context.Context, p Prober) ([]Device, error) {
	devices, err := diskprobe.List(diskprobe.Sys)
	if err != nil {
		return nil, err
	}
	var found []Device
	for _, r := range p.All(ctx, devices, diskprobe.Cached) {
		if r.Err == nil {
			found = append(found, labelled(r)...)
		}
	}
	return found, ctx.Err()
}

// labelled returns the file systems of a disk that have a known label: the whole disk first, then
// its partitions.
func labelled(r diskprobe.DeviceResult) []Device {
	var found []Device
	look := func(path string, partition int, c superblock.Content) {
		label := strings.TrimSpace(c.Label)
		if known(c.Kind, label) {
			found = append(found, Device{Path: path, Disk: r.Device.Path, Kind: c.Kind, Label: label, partition: partition, device: r.Device})
		}
	}
	look(r.Device.Path, 0, r.Answer.Whole)
	for _, h := range r.Answer.Contents {
		path := parttable.PartitionPath(r.Device.Path, h.Number)
		if i := slices.IndexFunc(r.Device.Partitions, func(p diskprobe.Partition) bool { return p.Number == h.Number }); i >= 0 {
			path = r.Device.Partitions[i].Path
		}
		look(path, h.Number, h.Content)
	}
	return found
}

// Document is a configuration file on a medium.
type Document struct {
	Name string // for example "/dev/sdb1:machine.yaml"
	Text []byte
}

// Find reads the configuration from a labelled medium. It returns nil if there is no such medium,
// and an error if the medium lacks the file.
func Find(ctx context.Context, p Prober) (*Document, error) {
	devices, err := List(ctx, p)
	if err != nil {
		return nil, err
	}
	return find(ctx, p, devices)
}

// find reads the file of the medium with the highest precedence.
func find(ctx context.Context, p Prober, devices []Device) (*Document, error) {
	device, file, err := choose(devices)
	if err != nil || file == "" {
		return nil, err
	}
	a, err := p.File(ctx, device.device, diskprobe.File{Partition: device.partition, Kind: device.Kind, Name: file, MaxSize: config.MaxSize})
	if err == nil && a.Missing {
		err = errors.New("has no file " + file)
	}
	if err != nil {
		return nil, fmt.Errorf("%s (%s): %w", device.Path, device.Label, err)
	}
	return &Document{Name: device.Path + ":" + file, Text: a.Text}, nil
}
