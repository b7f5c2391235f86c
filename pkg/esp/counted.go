package esp

import (
	"encoding/binary"
	"os"
	"strings"
	"unicode/utf16"

	"github.com/orlop-os/orlop/pkg/slot"
)

// countPath is the variable by which systemd-boot tells the system that it has started that its entry is on trial: the path of the entry, by the name
// that it has been given for this try (systemd's Boot Loader Interface, LoaderBootCountPath). It is in memory alone, and is not there otherwise.
const countPath = "/sys/firmware/efi/efivars/LoaderBootCountPath-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"

// Counted is the entry on trial by which the loader has started the system that runs, as it has said itself: the ESP need not be readable for it.
func Counted() (slot.Entry, bool) {
	variable, err := os.ReadFile(countPath)
	if err != nil {
		return slot.Entry{}, false
	}
	return counted(variable)
}

// counted reads the variable as efivarfs has it: 4 bytes of attributes, and a path in UTF-16 that ends with a zero (UEFI 2.10, 8.2 and 2.3.1).
func counted(variable []byte) (slot.Entry, bool) {
	const attributes = 4
	if len(variable) < attributes {
		return slot.Entry{}, false
	}
	var path []uint16
	for rest := variable[attributes:]; len(rest) >= 2; rest = rest[2:] {
		if unit := binary.LittleEndian.Uint16(rest); unit != 0 {
			path = append(path, unit)
		}
	}
	name := string(utf16.Decode(path))
	return slot.ParseEntry(name[strings.LastIndexByte(name, '\\')+1:])
}
