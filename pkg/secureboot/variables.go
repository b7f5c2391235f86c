package secureboot

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"

	"github.com/orlop-os/orlop/pkg/bootenv"
)

// Vendor GUIDs of the variables (UEFI 2.10, sections 3.3 and 32.4.1).
const (
	globalVendor   = "8be4df61-93ca-11d2-aa0d-00e098032b8c"
	databaseVendor = "d719b2cb-3d3a-4596-a3bc-dad00e67656f"
)

// Modes of Secure Boot.
const (
	// Enabled: the firmware starts only images that its database accepts.
	Enabled = "enabled"
	// Disabled: the firmware has a platform key, but starts every image.
	Disabled = "disabled"
	// Setup: the firmware has no platform key and starts every image. The boot loader can enroll
	// keys.
	Setup = "setup"
	// Unsupported: the firmware has no Secure Boot, or the machine was not started by UEFI
	// firmware.
	Unsupported = "unsupported"
)

// State is the state of Secure Boot, the topic "secure-boot".
type State struct {
	Mode string `json:"mode"`
	// Certificates are the fingerprints (Fingerprint) of the certificates in db.
	Certificates []string `json:"certificates,omitempty"`
	// Digests is the number of images that db accepts by their digest.
	Digests int `json:"digests,omitempty"`
	// Revocations is the number of entries in dbx.
	Revocations int `json:"revocations,omitempty"`
}

// Read reads the state from a directory of variables (bootenv.VariablesDir). After an error, only
// Mode is set.
func Read(dir string) (State, error) {
	mode, err := ReadMode(dir)
	if err != nil || mode == Unsupported {
		return State{Mode: mode}, err
	}
	s := State{Mode: mode}
	db, dbx, err := readDatabases(dir)
	if err != nil {
		return s, err
	}
	accepted, err := ParseLists(db)
	if err != nil {
		return s, fmt.Errorf("variable db: %w", err)
	}
	for _, e := range accepted {
		switch e.Type {
		case TypeX509:
			s.Certificates = append(s.Certificates, Fingerprint(e.Data))
		case TypeSHA256:
			s.Digests++
		}
	}
	revoked, err := ParseLists(dbx)
	if err != nil {
		return s, fmt.Errorf("variable dbx: %w", err)
	}
	s.Revocations = len(revoked)
	return s, nil
}

// ReadMode reads the mode from a directory of variables. After an error, the mode is empty.
func ReadMode(dir string) (string, error) {
	secure, err := readFlag(dir, "SecureBoot")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Unsupported, nil
	case err != nil:
		return "", err
	case secure:
		return Enabled, nil
	}
	setup, err := readFlag(dir, "SetupMode")
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", err
	case setup:
		return Setup, nil
	}
	return Disabled, nil
}

// CheckEnforced returns an error unless the firmware starts only images that its database accepts,
// and enrolls only signed keys.
func CheckEnforced(dir string) error {
	mode, err := ReadMode(dir)
	if err != nil {
		return fmt.Errorf("the state of Secure Boot cannot be read: %w", err)
	}
	setup, err := readFlag(dir, "SetupMode")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the state of Secure Boot cannot be read: %w", err)
	}
	if setup {
		mode = Setup
	}
	if mode != Enabled {
		return fmt.Errorf("the mode of Secure Boot is %q, so each boot loader would get the keys of the disks; enroll the keys of the image and enable Secure Boot", mode)
	}
	return nil
}

// attributes is the number of bytes in efivarfs before the content of a variable.
const attributes = 4

// readFlag reads a variable of a single byte. It fails if the byte is not 0 or 1.
func readFlag(dir, name string) (bool, error) {
	content, err := bootenv.ReadVariable(dir, name+"-"+globalVendor)
	if err != nil {
		return false, err
	}
	if len(content) != attributes+1 || content[attributes] > 1 {
		return false, fmt.Errorf("variable %s: % x is not a flag", name, content[:min(len(content), 16)])
	}
	return content[attributes] == 1, nil
}

// readDatabases reads the contents of db and dbx. A missing database is empty.
func readDatabases(dir string) (db, dbx []byte, err error) {
	if db, err = readDatabase(dir, "db"); err == nil {
		dbx, err = readDatabase(dir, "dbx")
	}
	return db, dbx, err
}

func readDatabase(dir, name string) ([]byte, error) {
	content, err := bootenv.ReadDatabase(dir, name+"-"+databaseVendor)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if len(content) < attributes {
		return nil, fmt.Errorf("variable %s: has %d bytes, and its attributes %d", name, len(content), attributes)
	}
	return content[attributes:], nil
}

// Fingerprint returns the fingerprint of a certificate (DER): "sha256:" and its SHA-256 in
// lower-case hexadecimal.
func Fingerprint(der []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(der)) }

// Firmware is what decides on a boot image: whether Secure Boot is on, and the contents of db and
// dbx.
type Firmware struct {
	Enabled bool
	DB, DBX []byte
}

// ReadFirmware reads the variables of the firmware. Without Secure Boot, it reads no database.
func ReadFirmware(dir string) (f Firmware, err error) {
	mode, err := ReadMode(dir)
	if err != nil || mode != Enabled {
		return f, err
	}
	f.Enabled = true
	f.DB, f.DBX, err = readDatabases(dir)
	return f, err
}
