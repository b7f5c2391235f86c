package main

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/orlop-os/orlop/pkg/bootenv"
	"github.com/orlop-os/orlop/pkg/disk/vpd"
	"github.com/orlop-os/orlop/pkg/kernel/cgroup"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/sanitize"
)

// sysroot is the mount point of the root until it becomes "/".
const sysroot = "/sysroot"

// earlyMounts lists the first mounts, in order. switchRoot moves all of them into the root. /run
// stays mounted until the machine powers off. Its size limit is the kernel's default, half of the
// memory; the system uses far less. /run contains keys, so it is mounted with noswap, an option
// that a remount cannot add.
var earlyMounts = []mount.Mount{
	{Source: "devtmpfs", Target: "/dev", Type: "devtmpfs", Flags: mount.NoSuid | mount.NoExec, Data: "mode=0755"},
	{Source: "proc", Target: "/proc", Type: "proc", Flags: mount.NoSuid | mount.NoDev | mount.NoExec},
	{Source: "sysfs", Target: "/sys", Type: "sysfs", Flags: mount.NoSuid | mount.NoDev | mount.NoExec},
	{Source: "tmpfs", Target: "/run", Type: "tmpfs", Flags: mount.NoSuid | mount.NoDev | mount.NoExec, Data: "mode=0755,noswap"},
}

// groupMount is the mount of the control groups.
var groupMount = mount.Mount{Source: "cgroup2", Target: cgroup.Mount, Type: "cgroup2", Flags: mount.NoSuid | mount.NoDev | mount.NoExec, Data: cgroup.Options}

// rootMount returns the mount of the verified root. It has the option nosuid, so set-user-ID files
// have no effect.
func rootMount(device string) mount.Mount {
	return mount.Mount{Source: device, Target: sysroot, Type: "erofs", Flags: mount.ReadOnly | mount.NoSuid | mount.NoDev}
}

// rootInMemory reports whether the boot image contains the root. line is the kernel command line.
func rootInMemory(line string) (bool, error) {
	value, found, err := bootenv.Argument(line, bootenv.MediumArgument)
	if err == nil && found && value != bootenv.MediumMemory {
		err = fmt.Errorf("%s: cannot be %q, only %s", bootenv.MediumArgument, value, bootenv.MediumMemory)
	}
	return found, err
}

// moduleNames parses a list of modules with one name per line. It skips empty lines and lines that
// begin with '#'.
func moduleNames(list string) []string {
	var names []string
	for line := range strings.Lines(list) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			names = append(names, line)
		}
	}
	return names
}

// blockDevice is a disk or a partition as the kernel reports it.
type blockDevice struct {
	name     string    // below /dev: "vda", "nvme0n1p2"
	disk     string    // disk of a partition, below /dev; empty for a disk
	number   int       // number of a partition in the table; 0 for a disk
	label    string    // GPT label of a partition
	partUUID uuid.UUID // unique GUID of a partition; zero if it has not been read
	// identity of a disk; zero if init has not read it. The transport is "" if it is not USB.
	identity vpd.Identity
}

// parseBlockDevice parses a uevent file below /sys/class/block. Before Linux 6.14 the file has no
// partition GUID, so the caller reads the GUID from the partition table.
func parseBlockDevice(uevent string) blockDevice {
	var d blockDevice
	for line := range strings.Lines(uevent) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		switch key {
		case "DEVNAME":
			d.name = value
		case "PARTN":
			d.number, _ = strconv.Atoi(value)
		case "PARTNAME":
			d.label = value
		}
	}
	return d
}

// mayBeRoot reports whether the device is a partition with the label of a slot. init reads the
// partition table only of disks with such a partition.
func (d blockDevice) mayBeRoot() bool {
	return d.number > 0 && strings.HasPrefix(d.label, "ROOT-")
}

// choice is the device with the root that init opens.
type choice struct {
	device string // "/dev/vda2"
	slot   string // "A" or "B"; empty for a root in memory
	// others are partitions with the same GUID on disks from which the firmware did not boot. init
	// does not use them.
	others []string
}

// String returns the location of the root for the log.
func (c choice) String() string {
	if c.slot == "" {
		return "in memory, " + c.device
	}
	return "slot " + c.slot + " on " + c.device
}

// firmware is what the firmware and the boot image report about this boot.
type firmware struct {
	// true if UEFI firmware has booted the machine; false if a hypervisor has loaded the kernel
	uefi bool
	// unique GUID of the partition that contains the booted image; zero if unknown
	partition uuid.UUID
	problem   string // reason for which partition is unknown
}

// refusal is the error of choose if some disks contain the root, but the system disk is ambiguous
// or missing.
type refusal struct {
	reason string
	disks  []string // below /dev, by name
	// final means that too many disks have the root. If final is false, the system disk is missing
	// and may still appear.
	final bool
}

func (r *refusal) Error() string { return r.reason }

// choose returns the partition with the GUID want on the disk from which the firmware booted. Other
// disks may have a partition with this GUID, too, because the image is public. The device of the
// choice is empty while no disk has the root. If the system disk is ambiguous or missing, the error
// is a *refusal. The names of the disks never decide, because they depend on the order in which the
// kernel finds the disks.
func choose(devices []blockDevice, want uuid.UUID, f firmware) (choice, error) {
	roots := map[string]blockDevice{} // by disk; if both slots have the same root, the first
	for _, d := range devices {
		if d.number == 0 || d.partUUID == uuid.Nil || d.partUUID != want {
			continue
		}
		if before, there := roots[d.disk]; !there || d.number < before.number {
			roots[d.disk] = d
		}
	}
	if len(roots) == 0 {
		return choice{}, nil
	}
	all := slices.Sorted(maps.Keys(roots))
	booted, err := bootedDisk(all, devices, f)
	if err != nil {
		return choice{}, err
	}
	root := roots[booted]
	c := choice{device: "/dev/" + root.name}
	for _, disk := range all {
		if disk != booted {
			c.others = append(c.others, "/dev/"+roots[disk].name)
		}
	}
	slot, ok := strings.CutPrefix(root.label, "ROOT-")
	if !ok || slot != "A" && slot != "B" {
		return choice{}, fmt.Errorf("%s: is labelled %q, ROOT-A or ROOT-B expected", c.device, root.label)
	}
	c.slot = slot
	return c, nil
}

// bootedDisk returns the element of disks from which the firmware booted. Without UEFI firmware, it
// returns the only element. The error is a *refusal.
func bootedDisk(disks []string, devices []blockDevice, f firmware) (string, error) {
	if !f.uefi && len(disks) == 1 {
		return disks[0], nil
	}
	if f.partition == uuid.Nil {
		why := f.problem
		if !f.uefi {
			why = "the machine was not started by UEFI firmware"
		}
		return "", &refusal{reason: "it is not known which disk was booted (" + why + "): boot the system from its own disk", disks: disks, final: true}
	}
	var booted []string
	for _, d := range devices {
		if d.number > 0 && d.partUUID == f.partition && slices.Contains(disks, d.disk) && !slices.Contains(booted, d.disk) {
			booted = append(booted, d.disk)
		}
	}
	switch len(booted) {
	case 1:
		return booted[0], nil
	case 0:
		return "", &refusal{reason: fmt.Sprintf("the firmware has booted partition %s, which is on no disk with this system: "+
			"connect the disk that was booted", f.partition), disks: disks}
	}
	slices.Sort(booted)
	if samePhysicalDisk(booted, devices) {
		return booted[0], nil
	}
	return "", &refusal{reason: fmt.Sprintf("the firmware has booted partition %s, which is on %d disks: all but one are copies; "+
		"remove the copies", f.partition, len(booted)), disks: booted, final: true}
}

// samePhysicalDisk reports whether all these disks are paths to the same physical disk.
func samePhysicalDisk(disks []string, devices []blockDevice) bool {
	identities := map[string]vpd.Identity{}
	for _, d := range devices {
		identities[d.name] = d.identity
	}
	return !slices.ContainsFunc(disks, func(d string) bool { return !vpd.SamePhysicalDisk(identities[disks[0]], identities[d]) })
}

// ambiguityMessage returns the console message for a refusal. describe returns the description of a
// disk.
func ambiguityMessage(r *refusal, describe func(disk string) string) string {
	var disks []string
	for _, d := range r.disks {
		disks = append(disks, "/dev/"+d+" ("+describe(d)+")")
	}
	return "cannot tell the system disk: " + r.reason + "; disks with this system: " + strings.Join(disks, ", ")
}

// deviceSummary returns a list of the disks and partitions, for the error message about a missing
// root.
func deviceSummary(devices []blockDevice) string {
	var names []string
	for _, d := range devices {
		if strings.HasPrefix(d.name, "loop") || strings.HasPrefix(d.name, "ram") || strings.HasPrefix(d.name, "dm-") {
			continue
		}
		if d.label != "" {
			names = append(names, d.name+" ("+d.label+")")
		} else {
			names = append(names, d.name)
		}
	}
	if len(names) == 0 {
		return "no disk seen"
	}
	slices.Sort(names)
	// Foreign disks choose their labels, so control characters are removed.
	return sanitize.Text("seen: " + strings.Join(names, ", "))
}

// deviceEvent has the fields that init uses of a device event of the kernel (lib/kobject_uevent.c).
type deviceEvent struct {
	block    bool   // the event is about a disk or partition
	modalias string // module alias of an added device; empty for other events
}

// parseEvent parses a netlink message: a headline, and KEY=value pairs that each end with a zero
// byte.
func parseEvent(message []byte) deviceEvent {
	var e deviceEvent
	var added bool
	for field := range bytes.SplitSeq(message, []byte{0}) {
		key, value, _ := strings.Cut(string(field), "=")
		switch key {
		case "ACTION":
			added = value == "add"
		case "SUBSYSTEM":
			e.block = value == "block"
		case "MODALIAS":
			e.modalias = value
		}
	}
	if !added {
		e.modalias = ""
	}
	return e
}
