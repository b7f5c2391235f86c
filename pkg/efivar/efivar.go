// Package efivar reads the firmware variables that the boot loader sets (systemd's Boot Loader
// Interface). It reads files of the kernel's efivarfs; it mounts no file system and writes no
// variables.
package efivar

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"unicode/utf16"

	"github.com/google/uuid"
)

// Dir is the directory of the variables (Documentation/filesystems/efivarfs.rst). It exists only if
// UEFI firmware with readable variables booted the machine.
const Dir = "/sys/firmware/efi/efivars"

// loader is the vendor GUID of systemd-boot's variables.
const loader = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"

// Variables of the boot loader, as files of Dir. Both are volatile, and are set at each boot.
const (
	// Partition is the unique GUID of the partition from which the loader was started. systemd-boot
	// sets it; its stub sets it if the firmware started the UKI itself. Neither sets it for an
	// image from the network.
	Partition = "LoaderDevicePartUUID-" + loader
	// CountedPath is the path of the started entry on the ESP, if the entry is on trial.
	CountedPath = "LoaderBootCountPath-" + loader
)

// limit is the maximum size of a variable in bytes. The variables above hold at most a path.
const limit = 4096

// Read reads a variable of this package in a directory of variables, for Text. The error for a
// missing variable wraps fs.ErrNotExist.
func Read(dir, name string) ([]byte, error) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if len(content) > limit {
		return nil, fmt.Errorf("%s: is larger than %d bytes", name, limit)
	}
	return content, nil
}

// Text returns the text of a variable. A file of efivarfs consists of four bytes of attributes and,
// for these variables, UTF-16 in little-endian order with a terminating zero (UEFI 2.10, 8.2 and
// 2.3.1). Data after the zero is ignored.
func Text(variable []byte) (string, error) {
	const attributes = 4
	if len(variable) < attributes || len(variable)%2 != 0 {
		return "", fmt.Errorf("a text of %d bytes: expected attributes and UTF-16", len(variable))
	}
	var units []uint16
	for rest := variable[attributes:]; len(rest) >= 2; rest = rest[2:] {
		unit := binary.LittleEndian.Uint16(rest)
		if unit == 0 {
			return string(utf16.Decode(units)), nil
		}
		units = append(units, unit)
	}
	return "", errors.New("a text without a terminating zero")
}

// GUID returns the GUID in the text of a variable. It must have the usual notation, in upper or
// lower case.
func GUID(variable []byte) (uuid.UUID, error) {
	const length = 36 // uuid.Parse accepts other notations, too
	text, err := Text(variable)
	if err != nil {
		return uuid.Nil, err
	}
	if len(text) != length {
		return uuid.Nil, fmt.Errorf("%.50q is not a GUID", text)
	}
	id, err := uuid.Parse(text)
	if err == nil && id == uuid.Nil {
		err = errors.New("the GUID is zero")
	}
	return id, err
}
