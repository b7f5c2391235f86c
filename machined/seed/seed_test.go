package seed

import (
	"strings"
	"testing"
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
