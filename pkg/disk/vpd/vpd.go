// Package vpd parses pages of vital product data, by which SCSI disks describe themselves; so do
// SATA and USB disks through the kernel's SCSI layer. It opens no files. The result is untrusted
// text from the disk: package sanitize makes it safe for a console.
package vpd

import (
	"encoding/binary"
	"strings"
)

// Serial returns the unit serial number from page 0x80 (SPC-4, 7.8.13), which the kernel provides
// in device/vpd_pg80; empty for another or an incomplete page. The kernel has no attribute "serial"
// for these disks.
func Serial(page []byte) string {
	const head = 4 // device type, 0x80, two bytes of length
	if len(page) < head || page[1] != 0x80 {
		return ""
	}
	text := page[head:min(len(page), head+int(binary.BigEndian.Uint16(page[2:])))]
	return strings.Trim(string(text), " \x00")
}
