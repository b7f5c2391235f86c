// Package mount describes mounts as values, does them, moves them and undoes them.
//
// It knows no particular file system and no particular place: the tables of what is mounted where
// belong to their owners (init for the first four, machined/host for the rest, machined/disk for
// the writable partitions).
package mount

import (
	"strings"
)

// Flags say what a mount forbids. The zero value forbids nothing.
type Flags uint

// The flags, as mount(8) names them.
const (
	ReadOnly Flags = 1 << iota
	NoSuid
	NoDev
	NoExec
	NoAtime
)

// flagNames is in the order in which flags are printed.
var flagNames = [...]struct {
	flag Flags
	name string
}{{ReadOnly, "ro"}, {NoSuid, "nosuid"}, {NoDev, "nodev"}, {NoExec, "noexec"}, {NoAtime, "noatime"}}

// String lists the flags as mount(8) does, separated by commas; "rw" if there are none.
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

// Mount is one file system at one place. See mount(2).
type Mount struct {
	Source string // a device path, or any word for file systems without a device
	Target string // absolute path of the mount point
	Type   string // file system type, as in /proc/filesystems
	Flags  Flags
	Data   string // options of the file system itself, separated by commas
}

// String says it as an operator would: "mount /dev/vda4 at /state (ext4, nosuid,nodev,noexec)".
func (m Mount) String() string {
	s := "mount " + m.Source + " at " + m.Target + " (" + m.Type + ", " + m.Flags.String()
	if m.Data != "" {
		s += ", " + m.Data
	}
	return s + ")"
}

// FATModules are the file system of firmware and of memory sticks, and the character sets that the
// kernel mounts it with (CONFIG_FAT_DEFAULT_CODEPAGE and CONFIG_FAT_DEFAULT_IOCHARSET of Debian's
// kernels).
func FATModules() []string { return []string{"vfat", "nls_cp437", "nls_ascii"} }
