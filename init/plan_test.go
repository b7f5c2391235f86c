package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/orlop-os/orlop/pkg/disk/vpd"
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

// TestNoSwap checks that each tmpfs of earlyMounts has the option noswap, because a later mount
// cannot add the option.
func TestNoSwap(t *testing.T) {
	found := 0
	for _, m := range earlyMounts {
		if m.Type != "tmpfs" {
			continue
		}
		if found++; !slices.Contains(strings.Split(m.Data, ","), "noswap") {
			t.Errorf("%s can be swapped", m)
		}
	}
	if found == 0 {
		t.Error("earlyMounts has no tmpfs")
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
		t.Error("mayBeRoot returns false for ROOT-A")
	}
	got = parseBlockDevice("MAJOR=253\nMINOR=0\nDEVNAME=vda\nDEVTYPE=disk\nDISKSEQ=1\n")
	if want := (blockDevice{name: "vda"}); got != want || got.mayBeRoot() {
		t.Errorf("disk: %+v, want %+v", got, want)
	}
}

func TestChoose(t *testing.T) {
	ours := uuid.MustParse("00010203-0405-0607-0809-0a0b0c0d0e0f")
	other := uuid.MustParse("ffffffff-0405-0607-0809-0a0b0c0d0e0f")
	esp := uuid.MustParse("e5900000-0000-4000-8000-000000000001")
	theirs := uuid.MustParse("e5900000-0000-4000-8000-000000000002")
	machine, uefi := firmware{}, firmware{uefi: true, partition: esp}
	unknown := firmware{uefi: true, problem: "no variable"}
	// disk returns a disk with an ESP, and a root in each slot.
	disk := func(name string, esp, a, b uuid.UUID) []blockDevice {
		return []blockDevice{{name: name + "3", disk: name, number: 3, label: "ROOT-B", partUUID: b}, {name: name},
			{name: name + "1", disk: name, number: 1, label: "ESP", partUUID: esp}, {name: name + "2", disk: name, number: 2, label: "ROOT-A", partUUID: a}}
	}
	path := func(name, wwid string) []blockDevice {
		d := disk(name, esp, ours, other)
		d[1].identity.WWID = wwid
		return d
	}
	usb := path("sdb", "naa.1")
	usb[1].identity.Transport = vpd.TransportUSB
	own := disk("vdb", esp, ours, other)
	// foreign has the same image and another ESP. Its name sorts first.
	foreign := disk("vda", theirs, ours, other)
	clone := disk("vdc", esp, ours, other)
	photos := []blockDevice{{name: "sda"}, {name: "sda1", disk: "sda", number: 1, label: "photos"}}
	renamed := []blockDevice{{name: "sdb9", disk: "sdb", number: 9, label: "ROOT-C", partUUID: ours}}
	for name, c := range map[string]struct {
		devices              []blockDevice
		want                 uuid.UUID
		firmware             firmware
		device, slot, others string
		reason               string
		disks                string // disks in the refusal; empty: the error is not a refusal
		final                bool
	}{
		"no device":                  {firmware: uefi, want: ours},
		"a disk without this system": {devices: photos, firmware: uefi, want: ours},
		"another version":            {devices: disk("vda", esp, other, other), firmware: uefi, want: ours},
		"slot A":                     {devices: own, want: ours, firmware: uefi, device: "/dev/vdb2", slot: "A"},
		"slot B":                     {devices: own, want: other, firmware: uefi, device: "/dev/vdb3", slot: "B"},
		"both slots":                 {devices: disk("vda", esp, ours, ours), want: ours, firmware: uefi, device: "/dev/vda2", slot: "A"},
		"a partition without a GUID does not match the GUID zero": {devices: photos, want: uuid.Nil, firmware: uefi},
		"a foreign disk": {devices: slices.Concat(foreign, own), want: ours, firmware: uefi, device: "/dev/vdb2", slot: "A",
			others: "/dev/vda2"},
		"the root in the foreign disk's other slot": {devices: slices.Concat(disk("vda", theirs, other, ours), own), want: ours, firmware: uefi,
			device: "/dev/vdb2", slot: "A", others: "/dev/vda3"},
		"only a foreign disk, and another ESP was booted": {devices: foreign, want: ours, firmware: uefi, reason: "which is on no disk with this system", disks: "vda"},
		"the ESP on a disk without the root": {devices: slices.Concat(foreign, disk("vdb", esp, other, other)), want: ours, firmware: uefi,
			reason: "which is on no disk with this system", disks: "vda"},
		"a clone": {devices: slices.Concat(clone, own), want: ours, firmware: uefi, reason: "which is on 2 disks", disks: "vdb vdc", final: true},
		"a clone and a foreign disk": {devices: slices.Concat(clone, foreign, own), want: ours, firmware: uefi, reason: "which is on 2 disks",
			disks: "vdb vdc", final: true},
		"two paths to one disk": {devices: slices.Concat(path("sdb", "naa.5000c500a1b2c3d4"), path("sda", "naa.5000c500a1b2c3d4")), want: ours, firmware: uefi,
			device: "/dev/sda2", slot: "A", others: "/dev/sdb2"},
		"two paths to one disk, and a clone": {devices: slices.Concat(path("sda", "naa.1"), path("sdb", "naa.1"), path("sdc", "naa.2")), want: ours, firmware: uefi,
			reason: "which is on 3 disks", disks: "sda sdb sdc", final: true},
		"a clone on USB that reports the identifier of the disk": {devices: slices.Concat(path("sda", "naa.1"), usb), want: ours, firmware: uefi,
			reason: "which is on 2 disks", disks: "sda sdb", final: true},
		"two disks without an identifier": {devices: slices.Concat(path("sda", ""), path("sdb", "")), want: ours, firmware: uefi, reason: "which is on 2 disks",
			disks: "sda sdb", final: true},
		"two disks, one without an identifier": {devices: slices.Concat(path("sda", ""), path("sdb", "naa.1")), want: ours, firmware: uefi, reason: "which is on 2 disks",
			disks: "sda sdb", final: true},
		"two partitions with the GUID of the ESP on one disk": {devices: append(slices.Clone(own), blockDevice{name: "vdb9", disk: "vdb", number: 9, partUUID: esp}),
			want: ours, firmware: uefi, device: "/dev/vdb2", slot: "A"},
		"the firmware does not name the booted partition": {devices: own, want: ours, firmware: unknown, reason: "no variable", disks: "vdb", final: true},
		"no firmware, one disk":                           {devices: own, want: ours, firmware: machine, device: "/dev/vdb2", slot: "A"},
		"no firmware, two disks": {devices: slices.Concat(foreign, own), want: ours, firmware: machine, reason: "was not started by UEFI firmware",
			disks: "vda vdb", final: true},
		"a partition with a wrong label": {devices: renamed, want: ours, firmware: machine, reason: `labelled "ROOT-C"`},
	} {
		got, err := choose(c.devices, c.want, c.firmware)
		reversed := slices.Clone(c.devices)
		slices.Reverse(reversed)
		if again, errAgain := choose(reversed, c.want, c.firmware); again.device != got.device || (errAgain == nil) != (err == nil) {
			t.Errorf("%s: the order of the devices changes the choice: %+v, %v", name, again, errAgain)
		}
		if c.reason == "" {
			if err != nil || got.device != c.device || got.slot != c.slot || strings.Join(got.others, " ") != c.others {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
			continue
		}
		var r *refusal
		if err == nil || !strings.Contains(err.Error(), c.reason) || errors.As(err, &r) != (c.disks != "") {
			t.Errorf("%s: %+v, %v, want an error with %q", name, got, err, c.reason)
		} else if r != nil && (strings.Join(r.disks, " ") != c.disks || r.final != c.final) {
			t.Errorf("%s: %+v", name, *r)
		}
	}
}

// TestChooseNeedsNoNames checks that the result of choose does not depend on the names of the
// disks.
func TestChooseNeedsNoNames(t *testing.T) {
	root, esp := uuid.New(), uuid.New()
	for _, names := range [][2]string{{"vda", "vdb"}, {"vdb", "vda"}, {"nvme0n1", "sda"}, {"sda", "nvme0n1"}, {"sdaa", "sdb"}} {
		var devices []blockDevice
		for i, name := range names {
			id := esp
			if i == 1 {
				id = uuid.New()
			}
			devices = append(devices, blockDevice{name: name}, blockDevice{name: name + "x1", disk: name, number: 1, partUUID: id},
				blockDevice{name: name + "x2", disk: name, number: 2, label: "ROOT-A", partUUID: root})
		}
		if got, err := choose(devices, root, firmware{uefi: true, partition: esp}); err != nil || got.device != "/dev/"+names[0]+"x2" {
			t.Errorf("%v: %+v, %v", names, got, err)
		}
	}
}

func TestComplaint(t *testing.T) {
	got := ambiguityMessage(&refusal{reason: "it is not known", disks: []string{"vda", "vdb"}}, func(disk string) string { return "8 GiB, serial " + disk })
	want := "cannot tell the system disk: it is not known; disks with this system: /dev/vda (8 GiB, serial vda), /dev/vdb (8 GiB, serial vdb)"
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestDescribe checks the descriptions of a virtio disk, an NVMe disk, a SCSI disk, and a disk that
// reports nothing.
func TestDescribe(t *testing.T) {
	for want, files := range map[string]map[string]string{
		"8 GiB, serial disk0":                  {"size": "16777216\n", "serial": "disk0"},
		"1 GiB, ACME 1, serial N1":             {"size": "2097152\n", "device/model": "ACME  1   \n", "device/serial": "N1  \n"},
		"1 GiB, QEMU HARDDISK, serial QM00001": {"size": "2097152\n", "device/model": "QEMU HARDDISK   \n", "device/vpd_pg80": "\x00\x80\x00\x07QM00001\xff"},
		"1 GiB, ?[2J?[31mA, serial ?[0m":       {"size": "2097152\n", "device/model": "\x1b[2J\x1b[31mA\n", "device/serial": "\x1b[0m"},
		"0 MiB":                                {"size": "1\n", "device/vpd_pg80": "\x00\x80\xff"},
		"":                                     {"size": "many"},
	} {
		dir := t.TempDir()
		for name, content := range files {
			if err := errors.Join(os.MkdirAll(filepath.Join(dir, "device"), 0o700), os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		if got := describe(dir); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestSeen(t *testing.T) {
	if got := deviceSummary([]blockDevice{{name: "loop0"}, {name: "ram0"}}); got != "no disk seen" {
		t.Errorf("without disks: %s", got)
	}
	got := deviceSummary([]blockDevice{{name: "sda1", number: 1, label: "ESP"}, {name: "sda"}, {name: "dm-0"}})
	if want := "seen: sda, sda1 (ESP)"; got != want {
		t.Errorf("seen = %s, want %s", got, want)
	}
}

// TestSeenIsPrintable checks that the label of a foreign disk cannot send control characters to the
// console.
func TestSeenIsPrintable(t *testing.T) {
	if got, want := deviceSummary([]blockDevice{{name: "sdb1", number: 1, label: "\x1b[2Jx"}}), "seen: sdb1 (?[2Jx)"; got != want {
		t.Errorf("%q, want %q", got, want)
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

// TestMountsForbidWhatTheyCan checks a claim of the README about the root and the early mounts:
// device files work only in /dev, programs can be executed only on the root, and no program gets
// the rights of its set-user-ID bit.
func TestMountsForbidWhatTheyCan(t *testing.T) {
	for _, m := range append(slices.Clone(earlyMounts), rootMount("/dev/dm-0")) {
		flags := m.Flags.String()
		if !strings.Contains(flags, "nosuid") {
			t.Errorf("%s: the set-user-ID bit has an effect", m)
		}
		if m.Target != "/dev" && !strings.Contains(flags, "nodev") {
			t.Errorf("%s: device files are allowed", m)
		}
		if m.Target != sysroot && !strings.Contains(flags, "noexec") {
			t.Errorf("%s: programs can be executed", m)
		}
	}
}
