package seed

import (
	"fmt"
	"slices"
	"strings"

	"github.com/orlop-os/orlop/pkg/diskprobe"
)

// Device is a file system with a known label, on a disk or a partition.
type Device struct {
	Path  string // for example "/dev/sdb1" or "/dev/sr0"
	Disk  string // the disk of the file system, for example "/dev/sdb" or "/dev/sr0"
	Kind  string // type of the file system: "vfat" or "iso9660"
	Label string

	device    diskprobe.Device
	partition int // 0 for the whole disk
}

// medium is a kind of configuration medium.
type medium struct {
	// label is compared without case, because some programs that create file systems change the
	// case.
	label string
	file  string
}

// media are all kinds of configuration media, in order of precedence.
var media = []medium{
	{label: "ORLOPCFG", file: "machine.yaml"},
	{label: "cidata", file: "user-data"},
}

// system is the label of the boot medium with Orlop OS itself (imager/iso.go). This medium has no
// configuration. It is a known label because callers of List must not write to the disk with it.
const system = "ORLOP"

// known reports whether a file system of this kind and label may contain a configuration or the
// system.
func known(kind, label string) bool {
	return kind == "iso9660" && label == system ||
		(kind == "vfat" || kind == "iso9660") && slices.ContainsFunc(media, func(m medium) bool { return strings.EqualFold(m.label, label) })
}

// choose returns the device and the name of the file to read. The name is empty if no device has
// the label of a configuration medium. Two media with the same label are an error.
func choose(devices []Device) (Device, string, error) {
	for _, m := range media {
		var found []Device
		for _, d := range devices {
			// A disk and its first partition can be the same file system, for example with a CD
			// image that also boots from a USB stick. Only the first of them counts.
			same := func(f Device) bool { return f.Disk == d.Disk }
			if strings.EqualFold(m.label, d.Label) && !slices.ContainsFunc(found, same) {
				found = append(found, d)
			}
		}
		switch len(found) {
		case 0:
			continue
		case 1:
			return found[0], m.file, nil
		}
		var names []string
		for _, d := range found {
			names = append(names, d.Path)
		}
		return Device{}, "", fmt.Errorf("%d media are labelled %s (%s): remove all but one", len(found), found[0].Label, strings.Join(names, ", "))
	}
	return Device{}, "", nil
}
