// Package vpd parses pages of vital product data (VPD), by which SCSI disks describe themselves,
// and also SATA and USB disks through the kernel's SCSI layer. It opens no files. Its results are
// untrusted texts from the disk; use package sanitize before printing them.
package vpd

import (
	"encoding/binary"
	"strings"
)

// Serial returns the unit serial number from VPD page 0x80 (SPC-4, 7.8.13); empty for a page of
// another type or without a header. sysfs has the page in device/vpd_pg80; it has no attribute
// "serial" for these disks.
func Serial(page []byte) string {
	const head = 4 // device type, 0x80, two bytes of length
	if len(page) < head || page[1] != 0x80 {
		return ""
	}
	text := page[head:min(len(page), head+int(binary.BigEndian.Uint16(page[2:])))]
	return strings.Trim(string(text), " \x00")
}

// Identity is the identity that a disk reports: its world wide identifier, such as
// "naa.5000c500a1b2c3d4" (from page 0x83; empty if it has none), and its transport, such as "sata".
type Identity struct{ WWID, Transport string }

// TransportUSB is the transport of a disk on USB.
const TransportUSB = "usb"

// SamePhysicalDisk reports whether two disks of the kernel are paths to the same physical disk. The
// kernel shows a disk with two ports or two controllers once for each path.
//
// The identifier of a disk on USB proves nothing: the bridge in its case makes it, and a person who
// copies a disk can choose it. So a disk on USB is never a second path to another disk.
func SamePhysicalDisk(a, b Identity) bool {
	return a.WWID != "" && a.WWID == b.WWID && a.Transport != TransportUSB && b.Transport != TransportUSB
}
