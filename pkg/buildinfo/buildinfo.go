// Package buildinfo describes the contents of a system image. The imager writes the description to
// the root file system; machined and the tools read it.
package buildinfo

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/orlop-os/orlop/pkg/disk/layout"
)

// Release is the content of paths.Release.
type Release struct {
	Name    string `json:"name"`    // "Orlop OS"
	Version string `json:"version"` // semantic version, without a leading v
	Profile string `json:"profile"` // name of the profile: qemu, metal
	// BuildTime is the time of the last commit of the source in seconds since 1970
	// (SOURCE_DATE_EPOCH). It is not the time of the build, because the same source must give the
	// same bytes. machined never sets the clock to an earlier time.
	BuildTime  int64  `json:"buildTime"`
	Kernel     string `json:"kernel"`     // kernel release, as in uname -r
	Kubernetes string `json:"kubernetes"` // version of the embedded Kubernetes, with a leading v
	PauseImage string `json:"pauseImage"` // reference of the embedded pause image
	// Epoch is the release epoch. It increases when all earlier versions have become unsafe: a
	// machine that has committed a version installs no version with a lower epoch. The statement
	// contains the epoch, too (package bundle).
	Epoch int `json:"epoch,omitempty"`
	// Signatures is how many of the keys in paths.ReleaseKeys must sign the next version; 0 means
	// 1.
	Signatures int `json:"signatures,omitempty"`
	// Expires is the time at which the support of this version ends, in seconds since 1970; 0 if
	// unknown. After that time, the system continues to work, with a warning.
	Expires int64 `json:"expires,omitempty"`
	// Pins are the dates of the Debian packages and Go modules in the image.
	Pins Pins `json:"pins,omitzero"`
	// Disk holds the partition sizes for an installation.
	Disk layout.Sizes `json:"disk"`
}

// Pins are the dates of the pinned package versions, in seconds since 1970; 0 if unknown. They do
// not depend on the time of the build.
type Pins struct {
	// Debian is the time at which the packages of Debian's archive were pinned. The packages
	// include every update that was published before this time.
	Debian int64 `json:"debian,omitempty"`
	// Modules is the publication time of the newest Go module in the image. The other modules are
	// older.
	Modules int64 `json:"modules,omitempty"`
}

// Read reads the description in an image (paths.BuildInfo).
func Read(file string) (Release, error) {
	var r Release
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err == nil && r.Version == "" {
		err = errors.New("it has no version")
	}
	if err != nil {
		return r, fmt.Errorf("release: cannot read %s: %w", file, err)
	}
	return r, nil
}
