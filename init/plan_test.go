package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
)

func TestRootInMemory(t *testing.T) {
	for _, c := range []struct {
		cmdline string
		want    bool
		reason  string
	}{
		{"quiet orlop.root=a", false, ""},
		{"quiet orlop.medium=memory orlop.root=a\n", true, ""},
		{"orlop.medium=disk", false, `orlop.medium: cannot be "disk", only memory`},
		{"orlop.medium=", false, `orlop.medium: cannot be "", only memory`},
		{"orlop.medium=memory orlop.medium=memory", false, "more than one orlop.medium= argument"},
	} {
		got, err := rootInMemory(c.cmdline)
		if c.reason != "" {
			if err == nil || !strings.Contains(err.Error(), c.reason) {
				t.Errorf("rootInMemory(%q): %v, want an error with %q", c.cmdline, err, c.reason)
			}
		} else if err != nil || got != c.want {
			t.Errorf("rootInMemory(%q) = %t, %v", c.cmdline, got, err)
		}
	}
}

func TestModuleNames(t *testing.T) {
	got := moduleNames("# always\ndm-verity\n\n  erofs  \nvirtio_blk")
	if want := []string{"dm-verity", "erofs", "virtio_blk"}; !slices.Equal(got, want) {
		t.Errorf("moduleNames = %q, want %q", got, want)
	}
}

func TestParseBlockDevice(t *testing.T) {
	got := parseBlockDevice("MAJOR=253\nMINOR=2\nDEVNAME=vda2\nDEVTYPE=partition\nDISKSEQ=1\nPARTN=2\nPARTNAME=ROOT-A\n")
	if want := (blockDevice{name: "vda2", number: 2, label: "ROOT-A"}); got != want {
		t.Errorf("partition: %+v, want %+v", got, want)
	}
	if !got.mayBeRoot() {
		t.Error("ROOT-A may not be the root")
	}
	got = parseBlockDevice("MAJOR=253\nMINOR=0\nDEVNAME=vda\nDEVTYPE=disk\nDISKSEQ=1\n")
	if want := (blockDevice{name: "vda"}); got != want || got.mayBeRoot() {
		t.Errorf("disk: %+v, want %+v", got, want)
	}
}

func TestChoose(t *testing.T) {
	ours := uuid.MustParse("00010203-0405-0607-0809-0a0b0c0d0e0f")
	other := uuid.MustParse("ffffffff-0405-0607-0809-0a0b0c0d0e0f")
	disk := blockDevice{name: "vda"}
	a := blockDevice{name: "vda2", number: 2, label: "ROOT-A", partUUID: ours}
	b := blockDevice{name: "vda3", number: 3, label: "ROOT-B", partUUID: other}
	copied := blockDevice{name: "vdb2", number: 2, label: "ROOT-A", partUUID: ours}
	renamed := blockDevice{name: "sda9", number: 9, label: "ROOT-C", partUUID: ours}
	for _, c := range []struct {
		devices              []blockDevice
		want                 uuid.UUID
		device, slot, others string
		reason               string
	}{
		{nil, ours, "", "", "", ""},
		{[]blockDevice{disk, b}, ours, "", "", "", ""},
		{[]blockDevice{disk, b, a}, ours, "/dev/vda2", "A", "", ""},
		{[]blockDevice{disk, b, a}, other, "/dev/vda3", "B", "", ""},
		{[]blockDevice{copied, disk, a}, ours, "/dev/vda2", "A", "/dev/vdb2", ""},
		{[]blockDevice{renamed}, ours, "", "", "", `labelled "ROOT-C"`},
		{[]blockDevice{disk}, uuid.Nil, "", "", "", ""}, // a disk has no GUID; it is no partition with the zero GUID
	} {
		got, err := choose(c.devices, c.want)
		if c.reason != "" {
			if err == nil || !strings.Contains(err.Error(), c.reason) {
				t.Errorf("choose(%v): %v, want an error with %q", c.devices, err, c.reason)
			}
			continue
		}
		if err != nil || got.device != c.device || got.slot != c.slot || strings.Join(got.others, " ") != c.others {
			t.Errorf("choose(%v, %s) = %+v, %v", c.devices, c.want, got, err)
		}
	}
}

func TestSeen(t *testing.T) {
	if got := seen([]blockDevice{{name: "loop0"}, {name: "ram0"}}); got != "no disk seen" {
		t.Errorf("without disks: %s", got)
	}
	got := seen([]blockDevice{{name: "sda1", number: 1, label: "ESP"}, {name: "sda"}, {name: "dm-0"}})
	if want := "seen: sda, sda1 (ESP)"; got != want {
		t.Errorf("seen = %s, want %s", got, want)
	}
}

func TestParseEvent(t *testing.T) {
	for _, c := range []struct {
		message string
		want    deviceEvent
	}{
		{"add@/devices/x\x00ACTION=add\x00SUBSYSTEM=block\x00DEVNAME=vda\x00", deviceEvent{block: true}},
		{"add@/devices/x\x00ACTION=add\x00SUBSYSTEM=pci\x00MODALIAS=pci:v1d2\x00", deviceEvent{modalias: "pci:v1d2"}},
		{"remove@/devices/x\x00ACTION=remove\x00MODALIAS=pci:v1d2\x00SUBSYSTEM=pci\x00", deviceEvent{}},
		{"", deviceEvent{}},
	} {
		if got := parseEvent([]byte(c.message)); got != c.want {
			t.Errorf("parseEvent(%q) = %+v, want %+v", c.message, got, c.want)
		}
	}
}

// The root of the file system tree and the writable parts keep to what README promises: no device files and no
// set-user-id programs anywhere but in /dev.
func TestMountsForbidWhatTheyCan(t *testing.T) {
	for _, m := range append(slices.Clone(namespace), rootMount("/dev/dm-0")) {
		flags := m.Flags.String()
		if !strings.Contains(flags, "nosuid") {
			t.Errorf("%s: set-user-id is allowed", m)
		}
		if m.Target != "/dev" && !strings.Contains(flags, "nodev") {
			t.Errorf("%s: device files are allowed", m)
		}
		if m.Target != sysroot && !strings.Contains(flags, "noexec") {
			t.Errorf("%s: programs are allowed", m)
		}
	}
}
