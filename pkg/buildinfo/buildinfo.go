// Package buildinfo names what an image is: written by the imager into the root, read by machined and
// by the tools.
package buildinfo

import "github.com/orlop-os/orlop/pkg/disklayout"

// Release is the content of paths.Release.
type Release struct {
	Name    string `json:"name"`    // "Orlop OS"
	Version string `json:"version"` // semantic version, without a leading v
	Profile string `json:"profile"` // the profile's name: qemu, metal
	// BuildTime is the source's time in seconds since 1970 (SOURCE_DATE_EPOCH: the time of the last
	// commit), so that the same source gives the same bytes. The clock of a machine is never set
	// earlier than this.
	BuildTime  int64  `json:"buildTime"`
	Kernel     string `json:"kernel"`     // kernel release, as in uname -r
	Kubernetes string `json:"kubernetes"` // version of the embedded Kubernetes, with a leading v
	PauseImage string `json:"pauseImage"` // reference of the embedded pause image
	// Epoch grows when versions before must not run any more, because of what was mended since: a
	// machine that has committed a version takes none with a lower epoch. It is the statement's,
	// too (package bundle).
	Epoch int `json:"epoch,omitempty"`
	// Signatures is how many of the keys of paths.ReleaseKeys have to sign a version that follows
	// this one; 0 is 1.
	Signatures int `json:"signatures,omitempty"`
	// Expires is until when this version is mended, in seconds since 1970; 0: that is not said. It
	// goes on working, and warns.
	Expires int64 `json:"expires,omitempty"`
	// Disk is how large the partitions are that the system is installed to.
	Disk disklayout.Sizes `json:"disk"`
}
