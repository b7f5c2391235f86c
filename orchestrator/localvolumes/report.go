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
	// Driver is the CSI driver's name, and the provisioner that a StorageClass names.
	Driver = bootstrap.VolumeDriver
	// ReportAnnotation of a Node holds its Report, ObsoleteAnnotation the names of the volumes and
	// snapshots that it is to destroy, CopiesAnnotation the Copies that it is to make, all as JSON.
	ReportAnnotation   = "orlop.dev/local-volumes"
	ObsoleteAnnotation = "orlop.dev/local-volumes-obsolete"
	CopiesAnnotation   = "orlop.dev/local-volumes-copies"
	// Finalizer keeps a PersistentVolume, or a VolumeSnapshotContent, until the node has destroyed
	// what it stood for, and a VolumeSnapshot until its content is gone.
	Finalizer = "orlop.dev/local-volume"
	// sourceAnnotation of a PersistentVolume says what it is still to be filled from.
	sourceAnnotation = "orlop.dev/local-volume-source"
	// promiseAnnotation of a VolumeSnapshotContent says where it is, and what it needs there, as
	// JSON.
	promiseAnnotation = "orlop.dev/local-snapshot"
)

// What a Node says and is told has a bound, because all annotations of an object together can have
// 256 KiB (k8s.io/apimachinery, TotalAnnotationSizeLimitB), and beyond it every change of one is
// refused. A name is of 45 bytes at most, 47 in quotes, and a number of 19:
//
//	Volumes    1024 × 68    name, colon, number, comma    69,632
//	Gone        256 × 48    name, comma                   12,288
//	Obsolete    256 × 48                                  12,288
//	Made         64 × 68                                   4,352
//	Waits        64 × 561   name, colon, reason, comma    35,904
//	Copies       64 × 137   two names, number, keys        8,768
//
// That are 140 KiB with the few bytes of the rest, and 116 KiB are left for others' annotations.
// After a restore of the cluster's data twice as many volumes may be on a disk, as long as nothing
// more is promised: they fit too.
const (
	mostNames    = 1024 // volumes and snapshots of a node, on its disk or promised
	mostObsolete = 256  // names that a node is told at a time to destroy
	mostCopies   = 64   // copies that a node is told at a time to make
	longestWait  = 512  // bytes of a reason, as JSON
)

// The attributes of a volume that the node's half is told by the kubelet.
const (
	attributeFilesystem = "filesystem" // the file system that the volume belongs to; see Report
	attributeSize       = "size"       // bytes, of a new volume
	// what it is filled from before it can be used; missing: it begins empty
	attributeSource = "source"
)

// Report is what a node says about its volumes.
type Report struct {
	// Problem is why the node has no volumes; empty: it has.
	Problem string `json:"problem,omitempty"`
	// Filesystem tells this DATA from one that the machine had before a reset: its volumes went
	// with it.
	Filesystem string `json:"filesystem,omitempty"`
	// Size is what all files of DATA together can have, in bytes.
	Size int64 `json:"size,omitempty"`
	// Volumes are those that lie on the disk, snapshots and what is not finished too, with their
	// limits in bytes.
	Volumes map[string]int64 `json:"volumes,omitempty"`
	// Created are those that the node was told to make by copying and that are whole, each with when
	// its copy began, in seconds since 1970. Waits are the others, each with the reason, but for
	// the one that is being copied, which is Copying.
	Created map[string]int64  `json:"made,omitempty"`
	Waits   map[string]string `json:"waits,omitempty"`
	Copying string            `json:"copying,omitempty"`
	// Removed are those of the volumes and snapshots that the node was told to destroy that are not on
	// the disk any more. Sorted.
	Removed []string `json:"gone,omitempty"`
}

// volumeName is how the names of all volumes and snapshots look: the UID of the claim, or of the
// VolumeSnapshot, follows. A name becomes the name of a folder.
var volumeName = regexp.MustCompile(`^(pvc|snapshot)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// isSnapshot tells a snapshot's name from a volume's.
func isSnapshot(name string) bool { return strings.HasPrefix(name, "snapshot-") }

// short is a reason of which the middle is left out when it is longer than longestWait: the end
// says what is wrong, or what will be. What is no text is left out too, because a report that was
// read would not be the same as what was written.
func short(text string) string {
	text = strings.ToValidUTF8(text, "")
	for most, cut := longestWait, text; ; most -= most / 8 {
		if len(text) > most {
			cut = strings.ToValidUTF8(text[:most/2], "") + "..." + strings.ToValidUTF8(text[len(text)-most/2:], "")
		}
		if encoded, err := json.Marshal(cut); err == nil && len(encoded) <= longestWait {
			return cut
		}
	}
}

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

// parseCopies reads what a node is to copy. What names no volume or snapshot is left out.
func parseCopies(text string) []Copy {
	if text == "" {
		return nil
	}
	var all []Copy
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil // written by somebody else; the controller writes it anew
	}
	return slices.DeleteFunc(all, func(c Copy) bool {
		return !volumeName.MatchString(c.Name) || !volumeName.MatchString(c.Of) || c.Size < 1
	})
}

// parseObsolete reads the names of the volumes that a node is to destroy. What is no volume's name
// is left out.
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
