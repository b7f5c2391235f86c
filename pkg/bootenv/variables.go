package bootenv

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

// VariablesDir is the directory of the firmware variables
// (Documentation/filesystems/efivarfs.rst). It exists only if UEFI firmware with readable variables
// booted the machine.
const VariablesDir = "/sys/firmware/efi/efivars"

// loader is the vendor GUID of the variables of the boot loader (systemd's Boot Loader Interface).
const loader = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"

// Variables of the boot loader and of the UKI's stub, as files of VariablesDir. Both are volatile:
// the firmware does not store them across boots.
const (
	// ImagePartition is the unique GUID of the partition that contains the started UKI. The stub
	// sets this variable at each start, except for an image from the network. The similar variable
	// LoaderDevicePartUUID is not used, because systemd-boot 257 does not replace the value that an
	// earlier boot loader has set (docs/decisions/0089-systemd-boot-257.md).
	ImagePartition = "StubDevicePartUUID-" + loader
	// LoaderCountedPath holds the path of the started entry on the ESP. It exists only if the
	// version of the entry is on trial.
	LoaderCountedPath = "LoaderBootCountPath-" + loader
)

// Maximum sizes of a variable in bytes. The variables above hold at most a path. A signature
// database of Secure Boot holds certificates and digests; Microsoft's list of revocations has 24
// KiB.
const (
	variableLimit = 4096
	databaseLimit = 256 << 10
)

// ReadVariable reads a variable of at most 4 KiB in a directory of variables. VariableText decodes
// the result. The error for a missing variable wraps fs.ErrNotExist.
func ReadVariable(dir, name string) ([]byte, error) { return readVariable(dir, name, variableLimit) }

// ReadDatabase reads a signature database of Secure Boot in a directory of variables. The error for
// a missing variable wraps fs.ErrNotExist.
func ReadDatabase(dir, name string) ([]byte, error) { return readVariable(dir, name, databaseLimit) }

func readVariable(dir, name string, limit int64) ([]byte, error) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(content)) > limit {
		return nil, fmt.Errorf("%s: is larger than %d bytes", name, limit)
	}
	return content, nil
}

// VariableText returns the text of a variable. A file of efivarfs consists of four bytes of
// attributes and, for these variables, UTF-16 in little-endian order with a terminating zero (UEFI
// 2.10, 8.2 and 2.3.1). Data after the zero is ignored.
func VariableText(variable []byte) (string, error) {
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

// VariableGUID returns the GUID in the text of a variable. The GUID must have the usual notation
// with hyphens, in upper or lower case.
func VariableGUID(variable []byte) (uuid.UUID, error) {
	const length = 36 // uuid.Parse accepts other notations, too
	text, err := VariableText(variable)
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
