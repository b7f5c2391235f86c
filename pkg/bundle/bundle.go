// Package bundle reads and writes upgrade bundles. A bundle is one signed file that contains a
// whole version of the system.
//
// A bundle is a tar archive in the OCI image layout (image-spec, image-layout.md), so that common
// tools can inspect it. The files of the archive have this order, and a reader rejects any other
// order. The statement comes early, so that the reader can reject a bundle before it stores data:
//
//	oci-layout, index.json      required by the OCI layout; not signed; the reader skips them
//	blobs/sha256/…              the OCI manifest
//	blobs/sha256/…              the statement: a DSSE envelope over a Statement
//	                            (github.com/secure-systems-lab/dsse)
//	blobs/sha256/…              the root image with its hash tree, as zstd
//	blobs/sha256/…              the unified kernel image
//	blobs/sha256/…              the bill of materials (SPDX)
//
// A machine also serves its running version to a peer as a bundle (Copy), which it assembles from
// the stored statement, the root image on its disk and the UKI. The root image of such a bundle is
// not compressed, and the bill of materials is missing.
//
// A reader trusts only a statement that enough trusted keys have signed (Trust), and verifies all
// following bytes against the statement. A provenance beside the bundle lists the inputs from which
// the version was built.
package bundle

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
)

// Media types of the parts.
const (
	TypeStatement = "application/vnd.dsse.envelope.v1+json"
	TypeRoot      = "application/vnd.orlop.root.v1+zstd"
	TypePlainRoot = "application/vnd.orlop.root.v1" // not compressed
	TypeUKI       = "application/vnd.orlop.uki.v1"
	TypeSBOM      = "application/spdx+json"
	// TypeBundle is the artifact type of the OCI manifest.
	TypeBundle = "application/vnd.orlop.bundle.v1"
	// TypeArchive is the type of a whole bundle as a layer of an artifact in a registry.
	TypeArchive = "application/vnd.orlop.bundle.v1+tar"
	// TypePayload is the type of the signed payload: the JSON form of a Statement.
	TypePayload = "application/vnd.orlop.statement.v1+json"
)

// Statement is the signed description of a bundle.
type Statement struct {
	Version string `json:"version"`
	Profile string `json:"profile"`
	// MinimumVersion is the oldest version that can upgrade to this version. It is empty if every
	// version can.
	MinimumVersion string `json:"minimumVersion,omitempty"`
	// Epoch is the release epoch (buildinfo.Release). A running version that does not support
	// epochs rejects a bundle with an epoch above 0, because it does not know the field.
	Epoch int `json:"epoch,omitempty"`
	// Root contains the dm-verity parameters of the root partition, as on the kernel command line
	// (verity.Params).
	Root string `json:"root"`
	// RootImage is the content of the root partition: file system and hash tree, not compressed.
	RootImage Part `json:"rootImage"`
	// Packed is the root image, compressed by zstd, as the imager stores it in the bundle.
	Packed Part `json:"packed"`
	UKI    Part `json:"uki"`
	SBOM   Part `json:"sbom"`
}

// Part is the digest and the size of a file.
type Part struct {
	SHA256 string `json:"sha256"` // lower-case hexadecimal
	Size   int64  `json:"size"`   // bytes
}

var (
	versionForm = regexp.MustCompile(`^[0-9][0-9A-Za-z.~-]{0,63}$`)
	digestForm  = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// sbomPart is the name of the bill of materials in error texts.
const sbomPart = "bill of materials"

// MaxEpoch is the highest valid epoch.
const MaxEpoch = 1_000_000

// MaxSBOM is the maximum size of a bill of materials that a reader holds in memory, in bytes. A
// typical bill of materials has 310 KB.
const MaxSBOM = 16 << 20

// Maximum sizes in bytes: maxPart for any part, and maxUKI for the UKI. The limit of the UKI is
// lower, because a reader holds the UKI in memory. A typical root image has 260 MiB, and a typical
// UKI 14 MiB.
const (
	maxPart = 8 << 30
	maxUKI  = 128 << 20
)

// NamedPart is a part with its name for error texts.
type NamedPart struct {
	Name string
	Part
}

// Parts returns all parts of the version. The root image is among them twice: compressed and not
// compressed.
func (s Statement) Parts() []NamedPart {
	return []NamedPart{{"root image", s.RootImage}, {"packed root image", s.Packed}, {"unified kernel image", s.UKI}, {sbomPart, s.SBOM}}
}

// CheckSBOM returns ErrDamaged if a document is not the bill of materials of the version.
func (s Statement) CheckSBOM(document []byte) error {
	part := newChecked(bytes.NewReader(document), s.SBOM)
	if _, err := io.Copy(io.Discard, part); err != nil {
		return err
	}
	return part.done(sbomPart)
}

// check rejects a statement that is signed but invalid.
func (s Statement) check() error {
	if !versionForm.MatchString(s.Version) {
		return fmt.Errorf("%q is not a version", s.Version)
	}
	if s.MinimumVersion != "" && !versionForm.MatchString(s.MinimumVersion) {
		return fmt.Errorf("%q is not a version", s.MinimumVersion)
	}
	if s.Epoch < 0 || s.Epoch > MaxEpoch {
		return fmt.Errorf("epoch %d: 0 to %d expected", s.Epoch, MaxEpoch)
	}
	if s.Root == "" {
		return errors.New("it does not describe the root")
	}
	for _, p := range s.Parts() {
		if !digestForm.MatchString(p.SHA256) || p.Size <= 0 || p.Size > maxPart {
			return fmt.Errorf("%s: digest %q of %d bytes is invalid", p.Name, p.SHA256, p.Size)
		}
	}
	if s.UKI.Size > maxUKI {
		return fmt.Errorf("UKI: %d MiB is too large", s.UKI.Size>>20)
	}
	return nil
}
