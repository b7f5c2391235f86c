package disk

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/disk/superblock"
	"github.com/orlop-os/orlop/pkg/diskprobe"
)

// TestForeignDisks checks the results of an examination. A disk that cannot be examined counts as a
// disk with data and stays in the list.
func TestForeignDisks(t *testing.T) {
	device := func(name string) diskprobe.Device {
		return diskprobe.Device{Name: name, Path: "/dev/" + name, Size: 8 << 30, SectorSize: 512}
	}
	zero := uuid.UUID{}
	results := map[string]diskprobe.DeviceResult{
		"sda": {Answer: diskprobe.Result{Disk: "/dev/sda", Size: 8 << 30}},
		"sdb": {Err: errors.New("no answer within 15s")},
		"sdc": {Err: diskprobe.ErrNoMedium},
		"sdd": {Answer: diskprobe.Result{Disk: "/dev/sdd", Size: 8 << 30, Table: "gpt", Mirrored: true,
			Entries:  []diskprobe.Entry{{Number: 1, Label: layout.ESP, Type: layout.TypeESP, Start: 1 << 20, Size: 64 << 20}, {Number: 3, Label: "b", Start: 65 << 20, Size: 1 << 20}},
			Contents: []diskprobe.PartitionContent{{Number: 1, Content: superblock.Content{Kind: "vfat", Label: "ESP"}, Loader: true}}}},
		"sde": {Answer: diskprobe.Result{Disk: "/dev/sde", Size: 8 << 30, Table: "a whole-disk Linux RAID member"}},
	}
	var devices []diskprobe.Device
	results["sdg"] = diskprobe.DeviceResult{Answer: diskprobe.Result{Disk: "/dev/sdg", Size: 8 << 30, Table: "gpt", Whole: superblock.Content{Kind: "Intel RAID member"}}}
	results["sdf"] = diskprobe.DeviceResult{Err: fmt.Errorf("%w: late", diskprobe.ErrSkipped)}
	for _, name := range []string{"sda", "sdb", "sdc", "sdd", "sde", "sdf", "sdg"} {
		devices = append(devices, device(name))
	}
	examine := func(_ context.Context, asked []diskprobe.Device) (out []diskprobe.DeviceResult) {
		for _, d := range asked {
			r := results[d.Name]
			r.Device = d
			out = append(out, r)
		}
		return out
	}
	disks, err := readAll(t.Context(), devices, "", examine)
	if err != nil || len(disks) != 6 {
		t.Fatalf("readAll returns %+v, %v", disks, err)
	}
	for i, want := range []string{"", "content that cannot be examined: no answer within 15s", "gpt", "a whole-disk Linux RAID member", unexamined, "Intel RAID member with a GPT partition table"} {
		if disks[i].Table.Kind != want || disks[i].Boot || disks[i].Size != 8<<30 {
			t.Errorf("the disk is %+v, want the content %q", disks[i], want)
		}
	}
	parts := disks[2].Partitions
	if len(parts) != 2 || !parts[0].Loader || parts[0].Content.String() != "vfat ESP" || parts[1].Loader || parts[1].Number != 3 || parts[1].UUID != zero || parts[1].Content.Kind != unknownData {
		t.Errorf("the partitions of /dev/sdd are %+v", parts)
	}
	for _, d := range []Disk{disks[1], disks[3], disks[4], disks[5]} {
		if _, err := Plan(Config{Disk: d.Path}, Have{Disks: disks}); err == nil || !strings.Contains(err.Error(), "refusing to use the disk: it holds "+d.Table.Kind) {
			t.Errorf("%s: %v", d.Path, err)
		}
	}
	unlooked, err := readAll(t.Context(), devices, "", nil)
	if err != nil || len(unlooked) != 7 || unlooked[0].Table.Kind != unexamined {
		t.Errorf("without an examination: %+v, %v", unlooked, err)
	}
}

// TestExamineOwn checks that examineOwn identifies the content of an Orlop partition by its
// superblock. Without a known superblock, an interrupted format is blank.
func TestExamineOwn(t *testing.T) {
	const size = 4 << 20
	super := func(magic uint16, label string) []byte {
		b := make([]byte, size)
		binary.LittleEndian.PutUint16(b[1024+0x38:], magic)
		binary.LittleEndian.PutUint32(b[1024+0x60:], 0x2c0)
		copy(b[1024+0x78:], label)
		return b
	}
	raid, cut := make([]byte, size), make([]byte, size)
	copy(raid[size-8<<10:], "\xfc\x4e\x2b\xa9")
	cut[8192] = 1
	for name, c := range map[string]struct {
		image []byte
		want  string
	}{
		"DATA": {super(0xef53, "DATA"), "ext4 DATA"}, "a foreign file system": {super(0xef53, "photos"), "ext4 photos"}, "a damaged superblock": {super(0xef52, "DATA"), unknownData},
		"zeros": {make([]byte, size), "blank"}, "an interrupted format": {cut, "blank"}, "a RAID member": {raid, "Linux RAID member"},
	} {
		if got, err := examineOwn(bytes.NewReader(c.image), size); err != nil || got.String() != c.want {
			t.Errorf("%s: %s, %v; want %s", name, got, err, c.want)
		}
	}
}
