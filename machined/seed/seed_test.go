package seed

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disk/superblock"
	"github.com/orlop-os/orlop/pkg/diskprobe"
)

func TestChoose(t *testing.T) {
	dev := func(path, disk, label string) Device {
		return Device{Path: path, Disk: disk, Kind: "vfat", Label: label}
	}
	for _, c := range []struct {
		name    string
		devices []Device
		want    string // the device and the file, or the start of the error; empty for no medium
	}{
		{"no device", nil, ""},
		{"a stick", []Device{dev("/dev/sdb1", "/dev/sdb", "ORLOPCFG")}, "/dev/sdb1 machine.yaml"},
		{"NoCloud", []Device{dev("/dev/sr0", "/dev/sr0", "cidata")}, "/dev/sr0 user-data"},
		{"NoCloud, with the label in capitals", []Device{dev("/dev/vdb", "/dev/vdb", "CIDATA")}, "/dev/vdb user-data"},
		{"ORLOPCFG is preferred to NoCloud", []Device{dev("/dev/sr0", "/dev/sr0", "cidata"), dev("/dev/sdb1", "/dev/sdb", "ORLOPCFG")}, "/dev/sdb1 machine.yaml"},
		{"a disk and its partition with the same label", []Device{dev("/dev/sdb", "/dev/sdb", "ORLOPCFG"), dev("/dev/sdb1", "/dev/sdb", "ORLOPCFG")}, "/dev/sdb machine.yaml"},
		{"the boot medium of the system", []Device{{Path: "/dev/sr0", Disk: "/dev/sr0", Kind: "iso9660", Label: "ORLOP"}}, ""},
		{"ORLOPCFG in small letters", []Device{dev("/dev/sdb1", "/dev/sdb", "orlopcfg")}, "/dev/sdb1 machine.yaml"},
		{"two labels that differ only in case", []Device{dev("/dev/sr0", "/dev/sr0", "cidata"), dev("/dev/sr1", "/dev/sr1", "CIDATA")}, "2 media are labelled cidata (/dev/sr0, /dev/sr1)"},
		{"two sticks", []Device{dev("/dev/sdb1", "/dev/sdb", "ORLOPCFG"), dev("/dev/sdc1", "/dev/sdc", "ORLOPCFG")}, "2 media are labelled ORLOPCFG (/dev/sdb1, /dev/sdc1)"},
	} {
		d, file, err := choose(c.devices)
		got := strings.TrimSpace(d.Path + " " + file)
		if err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%s: %q", c.name, got)
		}
	}
	for _, c := range []struct {
		kind, label string
		want        bool
	}{{"vfat", "ORLOPCFG", true}, {"iso9660", "cidata", true}, {"ext4", "ORLOPCFG", false}, {"vfat", "orlopcfg", true}, {"iso9660", "CiData", true}, {"iso9660", "orlop", false}, {"vfat", "", false}, {"iso9660", "ORLOP", true}, {"vfat", "ORLOP", false}} {
		if known(c.kind, c.label) != c.want {
			t.Errorf("known(%s, %s) = %t", c.kind, c.label, !c.want)
		}
	}
}

// TestLabelled checks which file systems of a disk have a known label.
func TestLabelled(t *testing.T) {
	held := func(number int, kind, label string) diskprobe.PartitionContent {
		return diskprobe.PartitionContent{Number: number, Content: superblock.Content{Kind: kind, Label: label}}
	}
	r := diskprobe.DeviceResult{
		Device: diskprobe.Device{Name: "sdb", Path: "/dev/sdb", Partitions: []diskprobe.Partition{{Number: 1, Path: "/dev/sdb1"}}},
		Answer: diskprobe.Result{Whole: superblock.Content{Kind: "iso9660", Label: "cidata "},
			Contents: []diskprobe.PartitionContent{held(1, "vfat", "ORLOPCFG"), held(2, "ext4", "ORLOPCFG"), held(3, "vfat", "other")}},
	}
	got := labelled(r)
	if len(got) != 2 || got[0].Path != "/dev/sdb" || got[0].Label != "cidata" || got[0].partition != 0 || got[1].Path != "/dev/sdb1" || got[1].Disk != "/dev/sdb" || got[1].partition != 1 {
		t.Errorf("the labeled file systems are %+v, want the whole disk and partition 1", got)
	}
}

// fileProber is a Prober that returns the same result for every file.
type fileProber struct {
	Prober
	answer diskprobe.Result
	err    error
	asked  diskprobe.File
	device string // path of the device
}

func (s *fileProber) File(_ context.Context, d diskprobe.Device, f diskprobe.File) (diskprobe.Result, error) {
	s.asked, s.device = f, d.Path
	return s.answer, s.err
}

// TestFind checks which file of which partition Find reads, and the error if the file is missing or
// unreadable.
func TestFind(t *testing.T) {
	medium := Device{Path: "/dev/sdb1", Disk: "/dev/sdb", Kind: "vfat", Label: "orlopcfg", partition: 1, device: diskprobe.Device{Path: "/dev/sdb"}}
	for _, c := range []struct {
		name    string
		devices []Device
		prober  fileProber
		want    string // the name and text of the document, or the error
	}{
		{"no medium", nil, fileProber{}, ""},
		{"a configuration", []Device{medium}, fileProber{answer: diskprobe.Result{Text: []byte("a: b")}}, "/dev/sdb1:machine.yaml a: b"},
		{"no file", []Device{medium}, fileProber{answer: diskprobe.Result{Missing: true}}, "/dev/sdb1 (orlopcfg): has no file machine.yaml"},
		{"a disk that does not answer", []Device{medium}, fileProber{err: errors.New("no answer within 15s")}, "/dev/sdb1 (orlopcfg): no answer within 15s"},
	} {
		d, err := find(t.Context(), &c.prober, c.devices)
		got := ""
		if d != nil {
			got = d.Name + " " + string(d.Text)
		}
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		if want := (diskprobe.File{Partition: 1, Kind: "vfat", Name: "machine.yaml", MaxSize: config.MaxSize}); len(c.devices) > 0 && (c.prober.asked != want || c.prober.device != "/dev/sdb") {
			t.Errorf("%s: asked for %+v of %s", c.name, c.prober.asked, c.prober.device)
		}
	}
}
