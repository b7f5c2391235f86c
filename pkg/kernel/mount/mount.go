// Package mount describes mounts as values, and creates, moves and removes them. It also attaches
// files to loop devices, and opens devices exclusively.
//
// It contains no table of file systems and mount points: other packages have these tables (init for
// the first four mounts, machined/disk for the writable partitions, machined/host for the others).
package mount

import (
	"slices"
	"strings"
)

// Flags are restrictions of a mount. The zero value means no restriction.
type Flags uint

// The flags, with the names of mount(8).
const (
	ReadOnly Flags = 1 << iota
	NoSuid
	NoDev
	NoExec
	NoAtime
)

// flagNames are the names of the flags, in the order in which String prints them.
var flagNames = [...]struct {
	flag Flags
	name string
}{{ReadOnly, "ro"}, {NoSuid, "nosuid"}, {NoDev, "nodev"}, {NoExec, "noexec"}, {NoAtime, "noatime"}}

// String lists the flags in the form of mount(8), separated by commas, or returns "rw" if no flag
// is set.
func (f Flags) String() string {
	var names []string
	for _, n := range flagNames {
		if f&n.flag != 0 {
			names = append(names, n.name)
		}
	}
	if len(names) == 0 {
		return "rw"
	}
	return strings.Join(names, ",")
}

// Mount is a file system at a mount point. See mount(2).
type Mount struct {
	Source string // a device path, or any word for file systems without a device
	Target string // absolute path of the mount point
	Type   string // file system type from /proc/filesystems
	Flags  Flags
	Data   string // options of the file system itself, separated by commas
}

// String describes the mount for operators: "mount /dev/vda4 at /state (ext4,
// nosuid,nodev,noexec)".
func (m Mount) String() string {
	s := "mount " + m.Source + " at " + m.Target + " (" + m.Type + ", " + m.Flags.String()
	if m.Data != "" {
		s += ", " + m.Data
	}
	return s + ")"
}

// FATModules returns the kernel modules for FAT, the file system of firmware and of USB sticks, and
// for the character sets that the kernel uses for FAT by default (CONFIG_FAT_DEFAULT_CODEPAGE and
// CONFIG_FAT_DEFAULT_IOCHARSET of Debian's kernels).
func FATModules() []string { return []string{"vfat", "nls_cp437", "nls_ascii"} }

// Topmost returns the topmost mount at target, which is the last one at target in mounts. mounts
// must be in the order of mounting. It returns false if there is none.
func Topmost(mounts []Mount, target string) (Mount, bool) {
	for _, m := range slices.Backward(mounts) {
		if m.Target == target {
			return m, true
		}
	}
	return Mount{}, false
}
