package volumes

import (
	"github.com/google/uuid"

	"github.com/orlop-os/orlop/machined/volumes/swap"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/nodespec/diskmatch"
	"github.com/orlop-os/orlop/pkg/paths"
)

// Config is the desired volumes, in the order of the documents.
type Config struct{ Volumes []Volume }

// awaited returns the volumes for which the services of the node wait: the parts of DATA, and swap:
// the kubelet reads its size only once.
func (c Config) awaited() (all []Volume) {
	for _, v := range c.Volumes {
		if v.awaited() {
			all = append(all, v)
		}
	}
	return all
}

// Volume is a volume of the configuration.
type Volume struct {
	Name  string
	Disk  config.DiskSelector
	Size  uint64 // bytes; 0: the rest of the disk
	Use   config.VolumeUse
	Flags mount.Flags
	Data  string // options of ext4
	Swap  Swap   // for the use swap
}

// Swap are the settings of a volume for swap.
type Swap struct {
	Discard      bool // report freed pages to the disk at once
	ZswapPercent int  // share of the memory for compressed pages; 0: none
}

func (v Volume) awaited() bool { return v.Use.IsPart() || v.Use == config.UseSwap }

// content returns the kind of content of a volume.
func (v Volume) content() string {
	if v.Use == config.UseSwap {
		return swapArea
	}
	return ext4
}

// Have is the actual state.
type Have struct {
	Disks []Disk // all disks, sorted by path
	// Matches is the result of the expression of each volume: by name, then by path. Without
	// an entry the expression has not been evaluated.
	Matches map[string]map[string]bool
	Records []Record // sorted by name
	Mounts  []mount.Mount
	Areas   []swap.Area // the swap in use
	Zswap   swap.Zswap
	// Places is the state of the directories on DATA that volumes replace, by path.
	Places map[string]Place
	// Busy reports that programs use the parts of DATA: services of the node run.
	Busy bool
}

// Disk is a disk with its partitions.
type Disk struct {
	diskmatch.Disk
	Boot bool // the system disk
	// Table is "gpt", "" for a blank disk, else a description of the content.
	Table string
	// First and End limit the space for partitions, which start at multiples of Alignment. Bytes.
	First, End, Alignment uint64
	Partitions            []Partition
}

// Partition is a partition with its content.
type Partition struct {
	Path    string // "/dev/vdb1"
	Label   string
	UUID    uuid.UUID // unique GUID of the partition
	Start   uint64    // bytes
	Size    uint64    // bytes
	Content Content
}

// Content is the content of a partition, as far as its signature identifies it.
type Content struct {
	Kind string // "" if blank, "ext4", "swap", another file system, or "unknown data"
	UUID uuid.UUID
	Size uint64 // of the file system, bytes
}

// Place is the state of a path on DATA.
type Place struct {
	Link  string // target of a symbolic link; empty for other files
	Empty bool   // missing, or a directory without an entry
	Moved bool   // the original that a move has left is beside it
}

// movedSuffix ends the name of an original after its move.
const movedSuffix = ".moved"

// String names a disk for operators: "/dev/vdb (8 GiB, QEMU HARDDISK, serial disk1)".
func (d Disk) String() string {
	s := d.Path + " (" + layout.FormatSize(uint64(d.Size))
	for _, f := range []struct{ before, value string }{{"", d.Model}, {"serial ", d.Serial}, {"wwid ", d.WWID}} {
		if f.value != "" {
			s += ", " + f.before + f.value
		}
	}
	return s + ")"
}

// Want is the plan of all volumes.
type Want struct {
	Volumes []Planned // in the order of their creation, then volumes without a document
}

// Planned is the plan of a volume.
type Planned struct {
	Volume
	// Document is false for a recorded volume after the removal of its document.
	Document bool
	Record   Record
	// Recorded reports that the record is stored already.
	Recorded bool
	// Disk is the disk of the volume; its path is empty if there is none because of Problem.
	Disk Disk
	// Partition is the partition; its path is empty until it exists.
	Partition Partition
	// NewTable permits a new partition table on the blank disk.
	NewTable bool
	// Grow is the size to which the partition grows; 0: it does not.
	Grow    uint64
	Problem string // why the volume cannot be used, or only with a remark; empty: it can
	// Usable reports that the volume can be mounted, perhaps with Problem as a remark.
	Usable bool
	// OnData reports that the use of the volume is blocked by data on DATA, which stay in use.
	OnData bool
	// Mounted reports that the file system is mounted, or the swap in use, at present.
	Mounted bool
}

// root returns the mount point of the file system of a volume.
func root(name string) string { return paths.VolumeMounts + "/" + name }

// place is a directory on DATA that leads to a directory of a volume.
type place struct {
	path string // on DATA
	dir  string // in the file system of the volume
	mode uint32
	// bind: the directory is mounted over the path, because programs see the path through other
	// mounts; else the path is a symbolic link
	bind bool
}

// places returns the directories on DATA that a volume replaces. No program renames files between
// two of them.
func places(v Volume) []place {
	switch v.Use {
	case config.UseMount:
		return []place{{path: paths.HostMnt + "/" + v.Name, dir: "data", mode: 0o755}}
	case config.UseEtcd: // etcd's restore renames between the two: links lead to a single mount
		return []place{{path: paths.EtcdData, dir: "etcd", mode: 0o700}, {path: paths.EtcdSnapshots, dir: "etcd-kept", mode: 0o700}}
	case config.UseImages:
		return []place{{path: paths.ContainerdData, dir: "containerd", mode: 0o711}}
	case config.UseVolumes:
		return []place{{path: paths.LocalVolumes, dir: "local-volumes", mode: 0o700}}
	case config.UseLogs: // collectors mount /var/log into their pods
		return []place{{path: paths.PodLogs, dir: "pods", mode: 0o755, bind: true}, {path: paths.AuditLog, dir: "kube-audit", mode: 0o700, bind: true}}
	}
	return nil // storageClass: the driver uses the directory itself; swap has no directory
}

// ClassDir returns the directory of a volume with a StorageClass, in which the driver has its
// volumes (orchestrator/localvolumes).
func ClassDir(name string) string { return root(name) + "/" + classDir }

const classDir = "local-volumes"
