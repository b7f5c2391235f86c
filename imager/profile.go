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
	// OperatorCA is the certificate (PEM) whose clients may configure the machine; relative to the
	// working folder. Empty: a generic image.
	OperatorCA string `yaml:"operatorCA"`
	// ReleaseKeys is a file of public keys (PEM, Ed25519), whose holders may sign the versions that
	// follow; relative to the working folder. Empty: a machine of this profile cannot be upgraded.
	ReleaseKeys string `yaml:"releaseKeys"`
	// Signatures is how many of these keys have to sign a version that follows. 0 is 1.
	Signatures int `yaml:"signatures"`
	// SigningKey is the private key that signs the bundle of this version, if one is asked for;
	// SigningKeys are more of them. Keys that are elsewhere sign afterwards: `imager sign`.
	SigningKey  string   `yaml:"signingKey"`
	SigningKeys []string `yaml:"signingKeys"`
	// SupportDays is for how many days after the source's time this version is mended: a machine
	// that runs it longer warns. 0: that is not said.
	SupportDays int `yaml:"supportDays"`
	// MinimumVersion is the oldest version that this one can follow. Empty: any.
	MinimumVersion string `yaml:"minimumVersion"`
	// Images are OCI archives that become part of the system beside the pause image; relative to
	// the working folder.
	Images []string `yaml:"images"`
	// Outputs are the artefacts to make beyond root.img, orlop.efi, manifest.json and
	// sbom.spdx.json.
	Outputs []string `yaml:"outputs"`
}

// KernelProfile says which kernel, and what of it.
type KernelProfile struct {
	Package   string   `yaml:"package"`   // as the lock file names it
	Arguments []string `yaml:"arguments"` // of the command line; the root hash is added to them
	Modules   []string `yaml:"modules"`   // in the root, with what they need (see kernel.Select)
	Initramfs []string `yaml:"initramfs"` // in root and initramfs, loaded by init, in this order
	// in root and initramfs, loaded by init if the disk with the root does not show without
	Drivers []string `yaml:"drivers"`
}

// RootProfile says how the root file system is written.
type RootProfile struct {
	Compression string `yaml:"compression"` // of erofs: none, lz4 or lz4hc
	ClusterSize Size   `yaml:"clusterSize"` // largest compressed unit of erofs; 4KiB to 1MiB
}

// DiskProfile holds the sizes of the partitions, multiples of 1 MiB.
type DiskProfile struct {
	ESP  Size `yaml:"esp"`
	Root Size `yaml:"root"` // each of ROOT-A and ROOT-B
}

// The outputs that a profile may name.
const (
	outputRaw = "disk.raw"
	outputZst = "disk.raw.zst"
	// outputBundle is the version as an upgrade for machines that run another one (package bundle).
	outputBundle = "orlop.bundle"
	// outputNetboot is a boot image that carries its root: what a network boot or a medium starts
	// (package medium).
	outputNetboot = "netboot.efi"
	// outputISO is a CD and a USB stick with that boot image.
	outputISO = "orlop.iso"
)

// outputs are all of them.
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

// yamlLine is how the YAML library names a line in its messages.
var yamlLine = regexp.MustCompile(`^(?:yaml: )?line (\d+): `)

// ReadProfile reads and checks a profile. Errors say file, line and field.
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

// inFile writes the lines that the YAML library names as file:line.
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
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(p); err != nil {
		return nil, err
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("a profile is one YAML document, a second one follows")
	}
	return p, p.check()
}

// check finds what is missing or contradicts itself.
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
			return fmt.Errorf("kernel.initramfs: %q: names of modules expected, because init loads each of them; folders belong into kernel.drivers", m)
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
	return p.checkRelease()
}

// checkRelease looks at who may sign what follows.
func (p *Profile) checkRelease() error {
	switch {
	case p.Signatures < 0:
		return fmt.Errorf("signatures: %d: how many of the releaseKeys have to sign expected, 1 or more", p.Signatures)
	case p.Signatures > 0 && p.ReleaseKeys == "":
		return errors.New("signatures: there are no releaseKeys that could sign")
	case p.SupportDays < 0 || p.SupportDays > 36500:
		return fmt.Errorf("supportDays: %d: 0 to 36500 expected", p.SupportDays)
	}
	return nil
}

// signers are the files of the private keys that sign.
func (p *Profile) signers() []string {
	if p.SigningKey == "" {
		return p.SigningKeys
	}
	return append([]string{p.SigningKey}, p.SigningKeys...)
}
