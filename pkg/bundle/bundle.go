// Package bundle reads and writes upgrade bundles: one file that holds a whole version of the
// system, signed.
//
// A bundle is a tar archive in the OCI image layout (image-spec, image-layout.md), so that the
// usual tools can look into it. Its members come in this order, which a reader insists on, so that
// it can decide before it has to keep anything:
//
//	oci-layout, index.json      as the layout wants them; not signed, and not needed to read the bundle
//	blobs/sha256/…              the OCI manifest
//	blobs/sha256/…              the statement: a DSSE envelope (github.com/secure-systems-lab/dsse) over a Statement
//	blobs/sha256/…              the root image with its hash tree, as zstd
//	blobs/sha256/…              the unified kernel image
//	blobs/sha256/…              the bill of materials (SPDX)
//
// A machine that gives the version that it runs to another one (Copy) has the statement, the root
// image as it lies on its disk, and the boot image. What it gives is a bundle too: its root image
// is not packed, and there is no bill of materials.
//
// Nothing is believed but the statement, once enough of the keys that the reader trusts have signed
// it; every byte that follows is checked against it.
package bundle

import (
	"errors"
	"fmt"
	"regexp"
)

// Media types of the parts.
const (
	TypeStatement = "application/vnd.dsse.envelope.v1+json"
	TypeRoot      = "application/vnd.orlop.root.v1+zstd"
	TypePlainRoot = "application/vnd.orlop.root.v1" // not packed
	TypeUKI       = "application/vnd.orlop.uki.v1"
	TypeSBOM      = "application/spdx+json"
	// TypeBundle is the artifact type of the OCI manifest.
	TypeBundle = "application/vnd.orlop.bundle.v1"
	// TypeArchive is a whole bundle as a layer of an artifact in a registry.
	TypeArchive = "application/vnd.orlop.bundle.v1+tar"
	// TypePayload is what the signature is over: the JSON form of a Statement.
	TypePayload = "application/vnd.orlop.statement.v1+json"
)

// Statement is what the signature vouches for.
type Statement struct {
	Version string `json:"version"`
	Profile string `json:"profile"`
	// MinimumVersion is the oldest version that this one can follow; empty: any.
	MinimumVersion string `json:"minimumVersion,omitempty"`
	// Epoch is the version's (release.Release). A machine of a version that knows no epochs takes
	// none that has one above 0.
	Epoch int `json:"epoch,omitempty"`
	// Root is the root's description for dm-verity, as it stands on the kernel's command line.
	Root string `json:"root"`
	// RootImage is the root partition's content: file system and hash tree, not compressed.
	RootImage Part `json:"rootImage"`
	// Packed is the same as it is in the bundle.
	Packed Part `json:"packed"`
	UKI    Part `json:"uki"`
	SBOM   Part `json:"sbom"`
}

// Part is a file's content.
type Part struct {
	SHA256 string `json:"sha256"` // lower-case hexadecimal
	Size   int64  `json:"size"`   // bytes
}

var (
	versionForm = regexp.MustCompile(`^[0-9][0-9A-Za-z.~-]{0,63}$`)
	digestForm  = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// MaxEpoch is the highest epoch.
const MaxEpoch = 1_000_000

// What the parts can have at most, in bytes: the root image goes to a disk, the boot image through
// memory. Real ones have 260 and 14 MiB.
const (
	maxPart = 8 << 30
	maxUKI  = 128 << 20
)

// check refuses a statement that is signed and makes no sense all the same.
func (s Statement) check() error {
	if !versionForm.MatchString(s.Version) {
		return fmt.Errorf("%q is no version", s.Version)
	}
	if s.MinimumVersion != "" && !versionForm.MatchString(s.MinimumVersion) {
		return fmt.Errorf("%q is no version", s.MinimumVersion)
	}
	if s.Epoch < 0 || s.Epoch > MaxEpoch {
		return fmt.Errorf("epoch %d: 0 to %d expected", s.Epoch, MaxEpoch)
	}
	if s.Root == "" {
		return errors.New("it does not describe the root")
	}
	for _, p := range []struct {
		name string
		part Part
	}{{"root image", s.RootImage}, {"packed root image", s.Packed}, {"UKI", s.UKI}, {"bill of materials", s.SBOM}} {
		if !digestForm.MatchString(p.part.SHA256) || p.part.Size <= 0 || p.part.Size > maxPart {
			return fmt.Errorf("%s: digest %q of %d bytes cannot be", p.name, p.part.SHA256, p.part.Size)
		}
	}
	if s.UKI.Size > maxUKI {
		return fmt.Errorf("UKI: %d MiB are too many", s.UKI.Size>>20)
	}
	return nil
}
