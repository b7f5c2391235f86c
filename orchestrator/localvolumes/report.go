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
	// Driver is the CSI driver's name, and the provisioner in a StorageClass.
	Driver = bootstrap.VolumeDriver
	// Annotations of a Node, all JSON: ReportAnnotation contains its Report, ObsoleteAnnotation the
	// names of the volumes and snapshots that it has to destroy, CopiesAnnotation the Copies that
	// it has to make.
	ReportAnnotation   = "orlop.dev/local-volumes"
	ObsoleteAnnotation = "orlop.dev/local-volumes-obsolete"
	CopiesAnnotation   = "orlop.dev/local-volumes-copies"
	// Finalizer keeps a PersistentVolume or a VolumeSnapshotContent until the node has destroyed
	// its data, and a VolumeSnapshot until its content is deleted.
	Finalizer = "orlop.dev/local-volume"
	// sourceAnnotation of a PersistentVolume is the name of its source, as long as it has not been
	// filled.
	sourceAnnotation = "orlop.dev/local-volume-source"
	// promiseAnnotation of a VolumeSnapshotContent contains its node and its promised size, as
	// JSON.
	promiseAnnotation = "orlop.dev/local-snapshot"
)

// The report and the requests of a Node are bounded, because all annotations of an object together
// can have 256 KiB (k8s.io/apimachinery, TotalAnnotationSizeLimitB), and beyond that the API
// rejects every change of an annotation. A name has at most 45 bytes, 47 with quotes, and a number
// 19:
//
//	Volumes    1024 × 68    name, colon, number, comma    69,632
//	Removed     256 × 48    name, comma                   12,288
//	Obsolete    256 × 48                                  12,288
//	Created      64 × 68                                   4,352
//	Waits        64 × 561   name, colon, reason, comma    35,904
//	Copies       64 × 137   two names, number, keys        8,768
//
// These are 140 KiB with the few remaining bytes, and leave 116 KiB to annotations of other
// clients. After a restore of the cluster's data, a disk may have twice as many volumes until
// further volumes are promised: they fit too.
const (
	maxNames    = 1024 // volumes and snapshots of a node, on its disk or promised
	maxObsolete = 256  // names in a request to destroy
	maxCopies   = 64   // copies in a request
	maxReason   = 512  // bytes of a reason, as JSON
)

// The attributes of a volume that the kubelet passes to the node part.
const (
	attributeFilesystem = "filesystem" // the file system of the volume; see Report
	attributeSize       = "size"       // bytes, of a new volume
	// the source of its data; missing: it begins empty
	attributeSource = "source"
)

// Report is a node's report about its volumes.
type Report struct {
	// Problem is why the node has no volumes, or empty.
	Problem string `json:"problem,omitempty"`
	// Filesystem identifies this DATA file system: the volumes of an earlier file system are lost
	// with a reset.
	Filesystem string `json:"filesystem,omitempty"`
	// Size is the capacity of DATA for files, in bytes.
	Size int64 `json:"size,omitempty"`
	// Volumes are the volumes on the disk, including snapshots and unfinished volumes, with their
	// quotas in bytes.
	Volumes map[string]int64 `json:"volumes,omitempty"`
	// Created are the requested copies that are complete, with the time when each copy began, in
	// seconds since 1970. Waits are the others, with the reason, except the copy in progress, which
	// is Copying.
	Created map[string]int64  `json:"made,omitempty"`
	Waits   map[string]string `json:"waits,omitempty"`
	Copying string            `json:"copying,omitempty"`
	// Removed are the requested volumes and snapshots that are no longer on the disk. Sorted.
	Removed []string `json:"gone,omitempty"`
}

// volumeName matches the names of all volumes and snapshots, with the UID of the claim or
// VolumeSnapshot. A name is also the name of a directory.
var volumeName = regexp.MustCompile(`^(pvc|snapshot)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// isSnapshot reports whether a name is a snapshot's.
func isSnapshot(name string) bool { return strings.HasPrefix(name, "snapshot-") }

// short returns a reason, without its middle if it is longer than maxReason: its end contains the
// cause or the next action. It also removes invalid UTF-8, because a decoded report would otherwise
// differ from the written report.
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

// parseReport decodes a Node's annotation. The report of a node without the annotation has a
// problem.
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

// parseCopies decodes a node's requested copies. It omits copies with invalid names.
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

// parseObsolete decodes the names of the volumes that a node has to destroy. It omits invalid
// names.
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
