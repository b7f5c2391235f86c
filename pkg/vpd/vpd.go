// Package vpd reads pages of vital product data, by which SCSI disks describe themselves, and SATA
// and USB disks through the kernel's SCSI layer. It opens nothing. What it returns is the disk's
// word: package printable makes it fit for a console.
package vpd

import (
	"encoding/binary"
	"strings"
)

// Serial returns the unit serial number of page 0x80 (SPC-4, 7.8.13), as the kernel shows it in
// device/vpd_pg80; empty if the page is another one or is cut off. The kernel has no attribute
// "serial" for these disks.
func Serial(page []byte) string {
	const head = 4 // the kind of device, 0x80, the length in two bytes
	if len(page) < head || page[1] != 0x80 {
		return ""
	}
	text := page[head:min(len(page), head+int(binary.BigEndian.Uint16(page[2:])))]
	return strings.Trim(string(text), " \x00")
}
