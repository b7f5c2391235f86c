package main

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/orlop-os/orlop/pkg/cmdline"
	"github.com/orlop-os/orlop/pkg/medium"
	"github.com/orlop-os/orlop/pkg/mount"
)

// sysroot is where the root is mounted until it becomes "/".
const sysroot = "/sysroot"

// namespace is what is mounted before anything else, in this order. All of it moves into the root later.
// /run stays until power-off; half of the memory bounds it (the kernel's default), which nothing of ours comes near.
var namespace = []mount.Mount{
	{Source: "devtmpfs", Target: "/dev", Type: "devtmpfs", Flags: mount.NoSuid | mount.NoExec, Data: "mode=0755"},
	{Source: "proc", Target: "/proc", Type: "proc", Flags: mount.NoSuid | mount.NoDev | mount.NoExec},
	{Source: "sysfs", Target: "/sys", Type: "sysfs", Flags: mount.NoSuid | mount.NoDev | mount.NoExec},
	{Source: "tmpfs", Target: "/run", Type: "tmpfs", Flags: mount.NoSuid | mount.NoDev | mount.NoExec, Data: "mode=0755"},
}

// rootMount is the verified root. nosuid: nobody in this system becomes another user by executing a file.
func rootMount(device string) mount.Mount {
	return mount.Mount{Source: device, Target: sysroot, Type: "erofs", Flags: mount.ReadOnly | mount.NoSuid | mount.NoDev}
}

// rootInMemory tells whether the root came with the boot image, instead of lying on a disk.
func rootInMemory(line string) (bool, error) {
	value, found, err := cmdline.Value(line, medium.Argument)
	if err == nil && found && value != medium.Memory {
		err = fmt.Errorf("%s: cannot be %q, only %s", medium.Argument, value, medium.Memory)
	}
	return found, err
}

// moduleNames reads a list of modules: one name a line, empty lines and lines with '#' in front are skipped.
func moduleNames(list string) []string {
	var names []string
	for line := range strings.Lines(list) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			names = append(names, line)
		}
	}
	return names
}

// blockDevice is what the kernel says of a disk or a partition.
type blockDevice struct {
	name     string    // below /dev: "vda", "nvme0n1p2"
	number   int       // a partition's number in the table; 0 for a disk
	label    string    // a partition's GPT label
	partUUID uuid.UUID // a partition's unique GUID; zero if it has not been read
}

// parseBlockDevice reads a uevent file below /sys/class/block. It has no unique GUID before Linux 6.14; the caller
// reads it from the table.
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

// mayBeRoot reports whether the partition's GUID is worth reading.
func (d blockDevice) mayBeRoot() bool {
	return d.number > 0 && strings.HasPrefix(d.label, "ROOT-")
}

// choice is the partition to open.
type choice struct {
	device string // "/dev/vda2"
	slot   string // "A" or "B"; empty for a root in memory
	// others are further partitions with the same GUID, on copies of the disk. The root hash makes it safe to open
	// any of them; the first by name is taken.
	others []string
}

// String says where the root is.
func (c choice) String() string {
	if c.slot == "" {
		return "in memory, " + c.device
	}
	return "slot " + c.slot + " on " + c.device
}

// choose finds the partition with the GUID. The choice has no device as long as it has not been seen.
func choose(devices []blockDevice, want uuid.UUID) (choice, error) {
	var c choice
	var matches []blockDevice
	for _, d := range devices {
		if d.number > 0 && d.partUUID == want {
			matches = append(matches, d)
		}
	}
	if len(matches) == 0 {
		return choice{}, nil
	}
	slices.SortFunc(matches, func(a, b blockDevice) int { return strings.Compare(a.name, b.name) })
	c.device = "/dev/" + matches[0].name
	for _, m := range matches[1:] {
		c.others = append(c.others, "/dev/"+m.name)
	}
	slot, ok := strings.CutPrefix(matches[0].label, "ROOT-")
	if !ok || slot != "A" && slot != "B" {
		return choice{}, fmt.Errorf("%s: is labelled %q, ROOT-A or ROOT-B expected", c.device, matches[0].label)
	}
	c.slot = slot
	return c, nil
}

// seen says in a few words which disks and partitions the kernel shows, for the message that ours is missing.
func seen(devices []blockDevice) string {
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
	return "seen: " + strings.Join(names, ", ")
}

// deviceEvent is what matters in a uevent of the kernel (lib/kobject_uevent.c).
type deviceEvent struct {
	block    bool   // a disk or partition has come, gone or changed
	modalias string // a device that has come asks for a driver by this name
}

// parseEvent reads one netlink message: a headline and KEY=value pairs, each ended by a zero byte.
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
