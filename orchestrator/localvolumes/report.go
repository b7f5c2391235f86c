package localvolumes

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"

	"github.com/orlop-os/orlop/orchestrator/bootstrap"
)

const (
	// Driver is the CSI driver's name, and the provisioner that a StorageClass names.
	Driver = bootstrap.VolumeDriver
	// ReportAnnotation of a Node holds its Report, ObsoleteAnnotation the names of the volumes that it is to destroy, both as JSON.
	ReportAnnotation   = "orlop.dev/local-volumes"
	ObsoleteAnnotation = "orlop.dev/local-volumes-obsolete"
	// Finalizer keeps a PersistentVolume until the node has destroyed what it stood for.
	Finalizer = "orlop.dev/local-volume"
)

// The attributes of a volume that the node's half is told by the kubelet.
const (
	attributeFilesystem = "filesystem" // the file system that the volume belongs to; see Report
	attributeSize       = "size"       // bytes, of a new volume
)

// Report is what a node says about its volumes.
type Report struct {
	// Problem is why the node has no volumes; empty: it has.
	Problem string `json:"problem,omitempty"`
	// Filesystem tells this DATA from one that the machine had before a reset: its volumes went with it.
	Filesystem string `json:"filesystem,omitempty"`
	// Size is what all files of DATA together can have, in bytes.
	Size int64 `json:"size,omitempty"`
	// Volumes are those that lie on the disk, with their limits in bytes.
	Volumes map[string]int64 `json:"volumes,omitempty"`
	// Gone are those of the volumes that the node was told to destroy that are not on the disk any more. Sorted.
	Gone []string `json:"gone,omitempty"`
}

// volumeName is how the names of all volumes look: the claim's UID follows. A name becomes the name of a folder.
var volumeName = regexp.MustCompile(`^pvc-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// parseReport reads a Node's annotation. A node that has said nothing yet has a problem.
func parseReport(text string) Report {
	if text == "" {
		return Report{Problem: "it has not said yet what it has"}
	}
	var r Report
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return Report{Problem: fmt.Sprintf("its annotation %s cannot be read: %v", ReportAnnotation, err)}
	}
	return r
}

// parseObsolete reads the names of the volumes that a node is to destroy. What is no volume's name is left out.
func parseObsolete(text string) []string {
	if text == "" {
		return nil
	}
	var names []string
	if err := json.Unmarshal([]byte(text), &names); err != nil {
		return nil // written by somebody else; the controller writes it anew
	}
	return slices.DeleteFunc(names, func(name string) bool { return !volumeName.MatchString(name) })
}
