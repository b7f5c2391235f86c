// Package efivar reads what the boot loader has left in the firmware's variables (systemd's Boot
// Loader Interface). It reads the content of files of the kernel's efivarfs; it mounts nothing and
// writes nothing.
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

// Dir is where the kernel shows the variables (Documentation/filesystems/efivarfs.rst). It
// exists only if the machine was started by UEFI firmware whose variables can be read.
const Dir = "/sys/firmware/efi/efivars"

// loader is the vendor GUID of systemd-boot's variables.
const loader = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"

// Variables of the boot loader, as files of Folder. Both are in memory only, and are set anew at
// each start.
const (
	// Partition is the unique GUID of the partition that the loader was started from. systemd-boot
	// sets it; its stub sets it if the firmware started the boot image itself. Neither does for an
	// image that came over the network.
	Partition = "LoaderDevicePartUUID-" + loader
	// CountedPath is the path of the started entry on the ESP, if the entry is on trial.
	CountedPath = "LoaderBootCountPath-" + loader
)

// limit is the largest variable that is read, in bytes. Those above hold a path at most.
const limit = 4096

// Read reads a variable: a name of this package, in a folder that shows variables. The result is as
// Text expects it. A variable that does not exist gives an error that wraps fs.ErrNotExist.
func Read(folder, name string) ([]byte, error) {
	f, err := os.Open(filepath.Join(folder, name))
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

// Text is the text of a variable: efivarfs shows four bytes of attributes, and then UTF-16 in
// little-endian order, which a zero ends (UEFI 2.10, 8.2 and 2.3.1). What follows the zero is
// ignored.
func Text(variable []byte) (string, error) {
	const attributes = 4
	if len(variable) < attributes || len(variable)%2 != 0 {
		return "", fmt.Errorf("a text of %d bytes: the variable's attributes and pairs of bytes expected", len(variable))
	}
	var units []uint16
	for rest := variable[attributes:]; len(rest) >= 2; rest = rest[2:] {
		unit := binary.LittleEndian.Uint16(rest)
		if unit == 0 {
			return string(utf16.Decode(units)), nil
		}
		units = append(units, unit)
	}
	return "", errors.New("a text without an end")
}

// GUID is the GUID in a variable's text, in the usual notation, in either case.
func GUID(variable []byte) (uuid.UUID, error) {
	const length = 36 // uuid.Parse takes other notations, too
	text, err := Text(variable)
	if err != nil {
		return uuid.Nil, err
	}
	if len(text) != length {
		return uuid.Nil, fmt.Errorf("%.50q is no GUID", text)
	}
	id, err := uuid.Parse(text)
	if err == nil && id == uuid.Nil {
		err = errors.New("the GUID is zero")
	}
	return id, err
}
