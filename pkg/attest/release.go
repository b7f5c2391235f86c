package attest

import (
	"bytes"
	"crypto/sha256"
	"debug/pe"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf16"

	"github.com/orlop-os/orlop/pkg/secureboot"
)

// Release holds the measurements of a version. All values follow from its boot image.
type Release struct {
	Version string
	Root    string // as on the kernel's command line
	// Authenticode digests. Image is the digest of the boot image, and Kernel that of the kernel in
	// the image; zero if the kernel is not an EFI program. Loader is the digest of the boot loader
	// of the same build; zero if the image does not name it. A machine can have an older loader: an
	// upgrade does not replace the loader.
	Image, Kernel, Loader Digest
	// Sections are the parts of the boot image in the order of their measurement.
	Sections []Section
	// SecureBoot maps the names of Secure Boot variables to their digests on machines that have
	// enrolled the keys of the build; nil if the build has no keys.
	SecureBoot map[string]Digest
}

// Section is a part of a boot image.
type Section struct {
	Name   string // with the leading dot
	Digest Digest // of its content
}

// MeasuredSections are the sections that systemd's stub measures in PCR 11, in this order. For each
// section, the stub measures first the name with a zero byte, then the content (systemd 257,
// src/fundamental/uki.h, src/boot/stub.c).
var MeasuredSections = []string{".linux", ".osrel", ".cmdline", ".initrd", ".ucode", ".splash", ".dtb", ".uname", ".sbat", ".pcrpkey", ".profile", ".dtbauto", ".hwids"}

// The fields in the section .osrel of a boot image that hold measurements of other objects than the
// image: of the boot loader and of Secure Boot variables. These fields can be trusted, because the
// stub measures the section, and the signatures of the bundle cover the image.
const (
	loaderField   = "ORLOP_LOADER_DIGEST"
	variableField = "ORLOP_SECURE_BOOT_"
)

// Fields returns the lines for the section .osrel that name the Authenticode digest of the loader
// and the digests of the Secure Boot variables PK, KEK and db. variables is empty if the build has
// no keys.
func Fields(loader Digest, variables map[string][]byte) []byte {
	out := fmt.Appendf(nil, "%s=%x\n", loaderField, loader)
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		digest := VariableDigest(name, variables[name])
		out = fmt.Appendf(out, "%s%s=%x\n", variableField, strings.ToUpper(name), digest)
	}
	return out
}

// The namespaces of the variables of Secure Boot (UEFI 2.10, sections 3.3 and 32.6.1).
var (
	globalVariable = []byte{0x61, 0xdf, 0xe4, 0x8b, 0xca, 0x93, 0xd2, 0x11, 0xaa, 0x0d, 0x00, 0xe0, 0x98, 0x03, 0x2b, 0x8c}
	imageSecurity  = []byte{0xcb, 0xb2, 0x19, 0xd7, 0x3a, 0x3d, 0x96, 0x45, 0xa3, 0xbc, 0xda, 0xd0, 0x0e, 0x67, 0x65, 0x6f}
)

// VariableDigest returns the digest with which the firmware measures a variable of Secure Boot in
// PCR 7 (UEFI_VARIABLE_DATA, TCG PC Client Platform Firmware Profile 1.06, 10.2.6).
func VariableDigest(name string, content []byte) Digest {
	space := globalVariable
	if strings.HasPrefix(name, "db") {
		space = imageSecurity
	}
	letters := utf16.Encode([]rune(name))
	out := bytes.Clone(space)
	out = binary.LittleEndian.AppendUint64(out, uint64(len(letters)))
	out = binary.LittleEndian.AppendUint64(out, uint64(len(content)))
	for _, l := range letters {
		out = binary.LittleEndian.AppendUint16(out, l)
	}
	return sha256.Sum256(append(out, content...))
}

// secureBootVariable is the variable whose content 1 says that Secure Boot is enabled.
const secureBootVariable = "SecureBoot"

// ReadImage computes the measurements of a version from its boot image (a unified kernel image).
func ReadImage(version, root string, image []byte) (r Release, err error) {
	r = Release{Version: version, Root: root}
	parsed, err := secureboot.ParseImage(bytes.NewReader(image), int64(len(image)))
	if err != nil {
		return r, err
	}
	r.Image = parsed.Digest
	f, err := pe.NewFile(bytes.NewReader(image))
	if err != nil {
		return r, fmt.Errorf("boot image: %w", err)
	}
	for _, name := range MeasuredSections {
		s := f.Section(name)
		if s == nil || s.VirtualSize == 0 {
			continue
		}
		content, err := s.Data()
		if err != nil || uint64(s.VirtualSize) > uint64(len(content)) {
			return r, fmt.Errorf("boot image: section %s is truncated", name)
		}
		content = content[:s.VirtualSize]
		r.Sections = append(r.Sections, Section{name, sha256.Sum256(content)})
		switch name {
		case ".linux":
			if k, err := secureboot.ParseImage(bytes.NewReader(content), int64(len(content))); err == nil {
				r.Kernel = k.Digest
			}
		case ".osrel":
			if err := r.readFields(string(content)); err != nil {
				return r, fmt.Errorf("boot image: section .osrel: %w", err)
			}
		}
	}
	if len(r.Sections) == 0 {
		return r, errors.New("boot image: it has no section that its stub measures")
	}
	return r, nil
}

// readFields parses the lines that Fields writes.
func (r *Release) readFields(text string) error {
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		variable, isVariable := strings.CutPrefix(key, variableField)
		if key != loaderField && !isVariable {
			continue
		}
		raw, err := hex.DecodeString(value)
		if err != nil || len(raw) != sha256.Size {
			return fmt.Errorf("%s is not a SHA-256 digest", key)
		}
		if !isVariable {
			r.Loader = Digest(raw)
			continue
		}
		if r.SecureBoot == nil {
			r.SecureBoot = map[string]Digest{}
		}
		if variable == "DB" {
			variable = "db"
		}
		r.SecureBoot[variable] = Digest(raw)
	}
	return nil
}

// ImagePCR returns the value of PCR 11 after a boot of the version.
func (r Release) ImagePCR() (value Digest) {
	for _, s := range r.Sections {
		value = extend(extend(value, nameDigest(s.Name)), s.Digest)
	}
	return value
}

// PhaseStorage is the phase that ends when machined has opened the disks. machined then measures
// the word into PCR 11 (pkg/diskkey), which the event log of the firmware does not show.
const PhaseStorage = "orlop-storage"

// AfterPhase returns the value of PCR 11 after a phase (systemd-measure(1), --phase).
func AfterPhase(value Digest, phase string) Digest {
	return extend(value, sha256.Sum256([]byte(phase)))
}

// nameDigest is the digest with which the stub measures the name of a section.
func nameDigest(name string) Digest { return sha256.Sum256([]byte(name + "\x00")) }
