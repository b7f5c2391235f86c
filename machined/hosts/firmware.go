package hosts

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/orlop-os/orlop/pkg/admission/inventory"
	"github.com/orlop-os/orlop/pkg/secureboot"
)

// ReadFirmware adds the identity that the firmware gives a machine to the inventory of the machine.
// sys is the directory of sysfs. A missing value stays empty.
func ReadFirmware(sys string, h inventory.Host) inventory.Host {
	word := func(file string) string {
		text, err := readSmall(filepath.Join(sys, "class/dmi/id", file))
		if err != nil {
			return "" // no DMI table
		}
		return strings.TrimSpace(string(text))
	}
	h.Serial, h.UUID = word("product_serial"), strings.ToLower(word("product_uuid"))
	// an unreadable variable stays unknown
	h.SecureBoot, _ = secureboot.ReadMode(filepath.Join(sys, "firmware/efi/efivars"))
	h.Vendor, h.Product, h.Firmware = word("sys_vendor"), word("product_name"), word("bios_version")
	// the pattern is valid
	entries, _ := filepath.Glob(filepath.Join(sys, "firmware/dmi/entries/42-*/raw"))
	for _, entry := range entries {
		if record, err := readSmall(entry); err == nil && h.Controller == "" {
			h.Controller = redfishAddress(record)
		}
	}
	return h
}

// ReadSpeed returns the speed of a link in Mbit/s; 0 if the link or its driver reports none.
func ReadSpeed(sys, link string) int {
	text, err := readSmall(filepath.Join(sys, "class/net", filepath.Base(link), "speed"))
	if err != nil {
		return 0 // no carrier
	}
	speed, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || speed < 0 {
		return 0 // -1: unknown
	}
	return speed
}

// readSmall reads at most 4 KiB of a file.
func readSmall(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, 4<<10))
}

// Constants of SMBIOS type 42, the management controller host interface (DSP0134, section 7.43;
// DSP0270, section 8).
const (
	interfaceNetwork = 0x40 // interface type
	protocolRedfish  = 0x04 // protocol type: Redfish over IP
	formatIPv4       = 1
	formatIPv6       = 2
)

// redfishAddress returns the address of the Redfish service in an SMBIOS record of type 42, with
// its port if it is not 443; empty if the record has none. It reads each byte at most once.
func redfishAddress(record []byte) string {
	const header = 4
	if len(record) < header || record[0] != 42 || int(record[1]) > len(record) || record[1] < header+3 {
		return ""
	}
	body := record[header:record[1]] // the strings after the body are not read
	if body[0] != interfaceNetwork {
		return ""
	}
	specific := int(body[1])
	if 2+specific >= len(body) {
		return ""
	}
	records, rest := int(body[2+specific]), body[3+specific:]
	for range records {
		if len(rest) < 2 || int(rest[1]) > len(rest)-2 {
			return ""
		}
		kind, data := rest[0], rest[2:2+int(rest[1])]
		rest = rest[2+len(data):]
		if kind != protocolRedfish {
			continue
		}
		if address := serviceAddress(data); address != "" {
			return address
		}
	}
	return ""
}

// serviceAddress returns the address in a record of the protocol Redfish over IP (DSP0270,
// table 4).
func serviceAddress(data []byte) string {
	const format, address, port, end = 51, 52, 84, 86
	if len(data) < end {
		return ""
	}
	var ip netip.Addr
	switch data[format] {
	case formatIPv4:
		ip, _ = netip.AddrFromSlice(data[address : address+4])
	case formatIPv6:
		ip, _ = netip.AddrFromSlice(data[address : address+16])
	}
	if !ip.IsValid() || ip.IsUnspecified() {
		return ""
	}
	if n := binary.LittleEndian.Uint16(data[port:]); n != 443 && n != 0 {
		return netip.AddrPortFrom(ip, n).String()
	}
	return fmt.Sprint(ip)
}
