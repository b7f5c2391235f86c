package seed

import (
	"fmt"
	"slices"
	"strings"

	"github.com/orlop-os/orlop/pkg/diskprobe"
)

// Device is a device with a known label.
type Device struct {
	Path  string // "/dev/sdb1", "/dev/sr0"
	Disk  string // whole device that contains it: "/dev/sdb", "/dev/sr0"
	Kind  string // of the file system: "vfat" or "iso9660"
	Label string

	device    diskprobe.Device
	partition int // 0 for the whole disk
}

// medium is a kind of configuration medium.
type medium struct {
	label string // in upper or lower case: some programs that create file systems change it
	file  string
}

// media are all kinds, in order of precedence.
var media = []medium{
	{label: "ORLOPCFG", file: "machine.yaml"},
	{label: "cidata", file: "user-data"},
}

// system is the label of the system's own medium (imager/iso.go). It carries no configuration, but
// code that looks for a disk to write to must recognize it.
const system = "ORLOP"

// known reports whether a file system with this label may contain a configuration or the system.
func known(kind, label string) bool {
	return kind == "iso9660" && label == system ||
		(kind == "vfat" || kind == "iso9660") && slices.ContainsFunc(media, func(m medium) bool { return strings.EqualFold(m.label, label) })
}

// choose returns the device and the file to read. The file is empty if no device has a known label.
func choose(devices []Device) (Device, string, error) {
	for _, m := range media {
		var found []Device
		for _, d := range devices {
			// A whole device and its first partition may be the same file system, as on a CD image
			// that also boots from a USB stick.
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
