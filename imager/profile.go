package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Profile is one product variant: the content of a file in profiles/.
type Profile struct {
	Name   string        `yaml:"name"`
	Kernel KernelProfile `yaml:"kernel"`
	Root   RootProfile   `yaml:"root"`
	Disk   DiskProfile   `yaml:"disk"`
	// OperatorCA is the file with the certificate (PEM) of the operator CA, relative to the working
	// directory. Clients with certificates of this CA may configure the machine. It is empty for a
	// generic image.
	OperatorCA string `yaml:"operatorCA"`
	// ReleaseKeys is a file of public keys (PEM, Ed25519), relative to the working directory. The
	// holders of the private keys may sign later versions. Without the file, a machine of this
	// profile cannot be upgraded.
	ReleaseKeys string `yaml:"releaseKeys"`
	// Signatures is the number of ReleaseKeys that have to sign a later version. 0 means 1.
	Signatures int `yaml:"signatures"`
	// ExtensionKeys is a file of public keys (PEM, Ed25519), relative to the working directory; it
	// is optional. Each holder of a private key may sign extensions for machines with this image.
	// The holders of the release keys may always sign them.
	ExtensionKeys string `yaml:"extensionKeys"`
	// SigningKey is the file with the private key that signs the bundle and the provenance of this
	// version. SigningKeys are files with further keys. A profile that requests a bundle needs at
	// least a single key. The holders of keys at other places add their signatures after the build,
	// with `imager sign`.
	SigningKey  string   `yaml:"signingKey"`
	SigningKeys []string `yaml:"signingKeys"`
	// SupportDays is the number of days after the source's time in which this version gets fixes.
	// After these days, a machine with this version warns. With 0, it never warns.
	SupportDays int `yaml:"supportDays"`
	// MinimumVersion is the oldest version that can be upgraded to this version. If it is empty,
	// all versions can be upgraded.
	MinimumVersion string `yaml:"minimumVersion"`
	// Images are OCI archives that become part of the system, in addition to the pause image. The
	// paths are relative to the working directory.
	Images []string `yaml:"images"`
	// SecureBoot says how the build signs the boot loader and the boot images. If it is nil, they
	// have no signature.
	SecureBoot *SecureBootProfile `yaml:"secureBoot"`
	// Outputs are the artifacts that the build makes in addition to root.img, orlop.efi,
	// manifest.json and sbom.spdx.json. With a bundle, it also makes provenance.intoto.jsonl.
	Outputs []string `yaml:"outputs"`
}

// KernelProfile selects the kernel and its modules.
type KernelProfile struct {
	Package   string   `yaml:"package"`   // name in the lock file
	Arguments []string `yaml:"arguments"` // of the command line; the build appends the root hash
	// Modules are patterns of the modules in the root (kernel.Select). The root also has their
	// dependencies.
	Modules []string `yaml:"modules"`
	// Initramfs are names of modules. The root and the initramfs contain them, and init loads all
	// of them in this order.
	Initramfs []string `yaml:"initramfs"`
	// Drivers are patterns of modules, which the root and the initramfs also contain. If init does
	// not find the root without them, it loads the modules for the devices of the machine.
	Drivers []string `yaml:"drivers"`
}

// RootProfile describes the format of the root file system.
type RootProfile struct {
	Compression string `yaml:"compression"` // of erofs: none, lz4 or lz4hc
	ClusterSize Size   `yaml:"clusterSize"` // largest unit that erofs compresses; 4KiB to 1MiB
}

// DiskProfile holds the sizes of the partitions, multiples of 1 MiB, and the encryption.
type DiskProfile struct {
	ESP  Size `yaml:"esp"`
	Root Size `yaml:"root"` // each of ROOT-A and ROOT-B
	// Recipients are public keys of age, at most 8. If there are any, a machine encrypts STATE and
	// DATA at its first boot, with keys that its TPM releases, and encrypts the recovery keys to
	// the recipients. The image needs a key for Secure Boot.
	Recipients []string `yaml:"recipients"`
}

// The possible outputs of a profile.
const (
	outputRaw = "disk.raw"
	outputZst = "disk.raw.zst"
	// outputBundle is the bundle, by which machines with another version upgrade to this version.
	outputBundle = "orlop.bundle"
	// outputNetboot is a boot image that contains its root, for a network boot or a boot medium
	// (package bootenv).
	outputNetboot = "netboot.efi"
	// outputISO is the boot medium with outputNetboot, for a CD or a USB stick.
	outputISO = "orlop.iso"
)

// outputs are all possible outputs.
var outputs = []string{outputRaw, outputZst, outputBundle, outputNetboot, outputISO}

// Size is a number of bytes, written with a unit: 64KiB, 256MiB, 1GiB.
type Size int64

// UnmarshalYAML reads a size with its unit.
func (s *Size) UnmarshalYAML(n *yaml.Node) error {
	for shift, unit := range map[int]string{10: "KiB", 20: "MiB", 30: "GiB"} {
		if number, ok := strings.CutSuffix(n.Value, unit); ok {
			v, err := strconv.ParseInt(number, 10, 32)
			if err != nil || v < 1 {
				break
			}
			*s = Size(v << shift)
			return nil
		}
	}
	return fmt.Errorf("line %d: size %q: a positive number with KiB, MiB or GiB expected", n.Line, n.Value)
}

// yamlLine matches the line number in the messages of the YAML library.
var yamlLine = regexp.MustCompile(`^(?:yaml: )?line (\d+): `)

// ReadProfile reads and validates a profile. Errors contain file, line and field.
func ReadProfile(path string) (*Profile, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read profile: %w", err)
	}
	p, err := parseProfile(data)
	if err != nil {
		return nil, inFile(path, err)
	}
	if want := strings.TrimSuffix(filepath.Base(path), ".yaml"); p.Name != want {
		return nil, fmt.Errorf("%s: name is %q: a profile is named like its file, %q", path, p.Name, want)
	}
	return p, nil
}

// inFile replaces the line numbers of the YAML library by the form FILE:LINE.
func inFile(path string, err error) error {
	messages := []string{err.Error()}
	if many := new(yaml.TypeError); errors.As(err, &many) {
		messages = many.Errors
	}
	var all []error
	for _, m := range messages {
		if at := yamlLine.FindStringSubmatch(m); at != nil {
			m = at[1] + ": " + strings.TrimPrefix(m, at[0])
		} else {
			m = " " + m
		}
		m = strings.TrimSuffix(strings.ReplaceAll(m, " not found in type main.", " is not a field of "), " in type")
		all = append(all, errors.New(path+":"+m))
	}
	return errors.Join(all...)
}

func parseProfile(data []byte) (*Profile, error) {
	p := new(Profile)
	if err := decodeOne(data, "a profile", p); err != nil {
		return nil, err
	}
	return p, p.check()
}

// decodeOne decodes a file that has a single YAML document. It rejects unknown fields and a second
// document. what is a name of the document for errors, for example "a profile".
func decodeOne(data []byte, what string, into any) error {
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(into); err != nil {
		return err
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return errors.New(what + " is one YAML document, a second one follows")
	}
	return nil
}

// check returns an error for the first missing or invalid value.
func (p *Profile) check() error {
	const mib = 1 << 20
	switch {
	case p.Kernel.Package == "":
		return errors.New("kernel.package is missing: the name of a kernel package in the lock file expected")
	case len(p.Kernel.Initramfs) == 0:
		return errors.New("kernel.initramfs is empty: at least dm-verity, erofs and a disk driver are needed to find the root")
	case p.Root.Compression != "none" && p.Root.Compression != "lz4" && p.Root.Compression != "lz4hc":
		return fmt.Errorf("root.compression is %q: none, lz4 or lz4hc expected", p.Root.Compression)
	case p.Root.Compression != "none" && (p.Root.ClusterSize < 4096 || p.Root.ClusterSize > mib || p.Root.ClusterSize%4096 != 0):
		return errors.New("root.clusterSize: a multiple of 4KiB, at most 1MiB, expected")
	case p.Disk.ESP%mib != 0 || p.Disk.ESP < 64*mib:
		return errors.New("disk.esp: a multiple of 1MiB, at least 64MiB, expected")
	case p.Disk.Root%mib != 0 || p.Disk.Root < mib:
		return errors.New("disk.root: a multiple of 1MiB expected")
	}
	for _, m := range p.Kernel.Initramfs {
		if strings.HasSuffix(m, "/") {
			return fmt.Errorf("kernel.initramfs: %q: names of modules expected, because init loads each of them; directories belong into kernel.drivers", m)
		}
	}
	for _, a := range p.Kernel.Arguments {
		if strings.HasPrefix(a, "orlop.") || strings.ContainsAny(a, " \t\n") {
			return fmt.Errorf("kernel.arguments: %q: one argument without spaces expected, and orlop.* are the imager's own", a)
		}
	}
	for _, o := range p.Outputs {
		if !slices.Contains(outputs, o) {
			return fmt.Errorf("outputs: %q is unknown, one of %s expected", o, strings.Join(outputs, ", "))
		}
		if o == outputBundle && len(p.signers()) == 0 {
			return fmt.Errorf("outputs: %s needs a signingKey", o)
		}
	}
	return errors.Join(p.checkRelease(), p.SecureBoot.check(), p.checkRecipients())
}

// checkRelease checks the fields for later versions and for the support.
func (p *Profile) checkRelease() error {
	switch {
	case p.Signatures < 0:
		return fmt.Errorf("signatures is %d; expected: the number of releaseKeys that have to sign, 1 or more", p.Signatures)
	case p.Signatures > 0 && p.ReleaseKeys == "":
		return errors.New("signatures: there are no releaseKeys that could sign")
	case p.SupportDays < 0 || p.SupportDays > 36500:
		return fmt.Errorf("supportDays: %d: 0 to 36500 expected", p.SupportDays)
	}
	return nil
}

// signers returns the files of the private signing keys.
func (p *Profile) signers() []string {
	if p.SigningKey == "" {
		return p.SigningKeys
	}
	return append([]string{p.SigningKey}, p.SigningKeys...)
}
