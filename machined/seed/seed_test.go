package seed

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/pkg/config"
)

func TestChoose(t *testing.T) {
	dev := func(path, disk, label string) Device {
		return Device{Path: path, Disk: disk, Kind: "vfat", Label: label}
	}
	for _, c := range []struct {
		name    string
		devices []Device
		want    string // device and file; or part of the error
	}{
		{"none", nil, ""},
		{"a stick", []Device{dev("/dev/sdb1", "/dev/sdb", "ORLOPCFG")}, "/dev/sdb1 machine.yaml"},
		{"NoCloud", []Device{dev("/dev/sr0", "/dev/sr0", "cidata")}, "/dev/sr0 user-data"},
		{"NoCloud, as FAT writes it", []Device{dev("/dev/vdb", "/dev/vdb", "CIDATA")}, "/dev/vdb user-data"},
		{"ours first", []Device{dev("/dev/sr0", "/dev/sr0", "cidata"), dev("/dev/sdb1", "/dev/sdb", "ORLOPCFG")}, "/dev/sdb1 machine.yaml"},
		{"the same twice", []Device{dev("/dev/sdb", "/dev/sdb", "ORLOPCFG"), dev("/dev/sdb1", "/dev/sdb", "ORLOPCFG")}, "/dev/sdb machine.yaml"},
		{"the system's own", []Device{{Path: "/dev/sr0", Disk: "/dev/sr0", Kind: "iso9660", Label: "ORLOP"}}, ""},
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
	}{{"vfat", "ORLOPCFG", true}, {"iso9660", "cidata", true}, {"ext4", "ORLOPCFG", false}, {"vfat", "orlopcfg", false}, {"vfat", "", false}, {"iso9660", "ORLOP", true}, {"vfat", "ORLOP", false}} {
		if known(c.kind, c.label) != c.want {
			t.Errorf("known(%s, %s) = %t", c.kind, c.label, !c.want)
		}
	}
}

func TestReadFile(t *testing.T) {
	dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "secret")
	write := func(name string, size int) {
		if err := os.WriteFile(name, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(outside, 10)
	write(filepath.Join(dir, "good"), config.MaxSize)
	write(filepath.Join(dir, "large"), config.MaxSize+1)
	for name, target := range map[string]string{"link": "good", "escape": outside} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := readFile(dir, "good"); err != nil || len(text) != config.MaxSize {
		t.Errorf("good: %d bytes, %v", len(text), err)
	}
	for name, want := range map[string]string{"large": "at most", "link": "not a plain file", "escape": "not a plain file", "none": "has no file"} {
		if text, err := readFile(dir, name); err == nil || !strings.Contains(err.Error(), want) || text != nil {
			t.Errorf("%s: %d bytes, %v", name, len(text), err)
		}
	}
}
