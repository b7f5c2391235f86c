package localvolumes

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/orlop-os/orlop/orchestrator/bootstrap"
)

const (
	// Driver is the name of the CSI driver, and the provisioner of its StorageClasses.
	Driver = bootstrap.VolumeDriver
	// These annotations of a Node contain JSON. ReportAnnotation contains the Report of the node.
	// ObsoleteAnnotation contains the names of the volumes and snapshots that the node has to
	// destroy. CopiesAnnotation contains each Copy that the node has to make.
	ReportAnnotation   = "orlop.dev/local-volumes"
	ObsoleteAnnotation = "orlop.dev/local-volumes-obsolete"
	CopiesAnnotation   = "orlop.dev/local-volumes-copies"
	// Finalizer is the finalizer of three kinds of objects. A PersistentVolume and a
	// VolumeSnapshotContent have it until the node has destroyed the data. A VolumeSnapshot has it
	// until its VolumeSnapshotContent is deleted.
	Finalizer = "orlop.dev/local-volume"
	// sourceAnnotation of a PersistentVolume contains the name of the volume or snapshot from which
	// the node fills it. The controller removes the annotation when the volume is filled.
	sourceAnnotation = "orlop.dev/local-volume-source"
	// promiseAnnotation of a VolumeSnapshotContent contains its node, its file system and its
	// promised size, as JSON (type place).
	promiseAnnotation = "orlop.dev/local-snapshot"
)

// The report and the requests of a Node have a limited size. All annotations of an object together
// can have 256 KiB (k8s.io/apimachinery, TotalAnnotationSizeLimitB). The API server rejects every
// change of an annotation that exceeds this limit. A name has at most 45 bytes, or 47 with quotes,
// and a number has at most 19 digits:
//
//	Volumes    1024 × 68    name, colon, number, comma    69,632
//	Removed     256 × 48    name, comma                   12,288
//	Obsolete    256 × 48                                  12,288
//	Created      64 × 68                                   4,352
//	Waits        64 × 561   name, colon, reason, comma    35,904
//	Copies       64 × 137   two names, number, keys        8,768
//
// With the few other bytes of a report, these are 140 KiB. They leave 116 KiB for the annotations
// of other clients. After a restore of the etcd data, a disk can have twice maxNames volumes; the
// report still fits.
const (
	maxNames    = 1024 // volumes and snapshots of a node, existing or promised
	maxObsolete = 256  // names in an ObsoleteAnnotation
	maxCopies   = 64   // copies in a CopiesAnnotation
	maxReason   = 512  // bytes of a reason, encoded as JSON
)

// The kubelet passes these attributes of a PersistentVolume to the node part.
const (
	attributeFilesystem = "filesystem" // the ID of the file system; see Report
	attributeSize       = "size"       // size of a new volume, in bytes
	// the name of the source of its data; without it, the volume begins empty
	attributeSource = "source"
)

// Report is the report of a node about the volumes of one pool.
type Report struct {
	// Problem is the reason why the pool cannot have volumes. It is empty if the pool can.
	Problem string `json:"problem,omitempty"`
	// Filesystem is the ID of the file system of the pool. A reset of the machine creates a new
	// file system with another ID, so volumes with the old ID are lost.
	Filesystem string `json:"filesystem,omitempty"`
	// Size is the capacity of the file system for files, in bytes.
	Size int64 `json:"size,omitempty"`
	// Volumes maps the names of all volumes and snapshots on the disk to their quotas in bytes. It
	// includes incomplete volumes and snapshots.
	Volumes map[string]int64 `json:"volumes,omitempty"`
	// Created maps each complete requested copy to the time when it began, in seconds since 1970.
	// Copying is the name of the copy in progress. Waits maps all other requested copies to the
	// reason why they wait.
	Created map[string]int64  `json:"made,omitempty"`
	Waits   map[string]string `json:"waits,omitempty"`
	Copying string            `json:"copying,omitempty"`
	// Removed lists the volumes and snapshots of the ObsoleteAnnotation that are no longer on the
	// disk. It is sorted.
	Removed []string `json:"gone,omitempty"`
}

// volumeName matches the names of volumes and snapshots: a prefix, and the UID of the claim or
// VolumeSnapshot. The name is also the name of the directory on the disk.
var volumeName = regexp.MustCompile(`^(pvc|snapshot)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// isSnapshot reports whether a name is the name of a snapshot.
func isSnapshot(name string) bool { return strings.HasPrefix(name, "snapshot-") }

// short returns the text without its middle if the text is longer than maxReason. It preserves the
// end, because the end contains the cause or the next action. It also removes invalid UTF-8,
// because otherwise the decoded report would differ from the written report.
func short(text string) string {
	text = strings.ToValidUTF8(text, "")
	for most, cut := maxReason, text; ; most -= most / 8 {
		if len(text) > most {
			cut = strings.ToValidUTF8(text[:most/2], "") + "..." + strings.ToValidUTF8(text[len(text)-most/2:], "")
		}
		if encoded, err := json.Marshal(cut); err == nil && len(encoded) <= maxReason {
			return cut
		}
	}
}

// parseReport decodes the ReportAnnotation of a Node. If the text is empty or invalid, the result
// has a Problem.
func parseReport(text string) Report {
	if text == "" {
		return Report{Problem: "it has not reported its volumes yet"}
	}
	var r Report
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return Report{Problem: fmt.Sprintf("its annotation %s cannot be read: %v", ReportAnnotation, err)}
	}
	return r
}

// parseCopies decodes a CopiesAnnotation. It omits copies with an invalid name or size.
func parseCopies(text string) []Copy {
	if text == "" {
		return nil
	}
	var all []Copy
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil // written by another client; the controller replaces it
	}
	return slices.DeleteFunc(all, func(c Copy) bool {
		return !volumeName.MatchString(c.Name) || !volumeName.MatchString(c.Of) || c.Size < 1
	})
}

// parseObsolete decodes an ObsoleteAnnotation. It omits invalid names.
func parseObsolete(text string) []string {
	if text == "" {
		return nil
	}
	var names []string
	if err := json.Unmarshal([]byte(text), &names); err != nil {
		return nil // written by another client; the controller replaces it
	}
	return slices.DeleteFunc(names, func(name string) bool { return !volumeName.MatchString(name) })
}
