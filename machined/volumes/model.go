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

// Config has the desired volumes, in the order of their documents.
type Config struct{ Volumes []Volume }

// awaited returns the volumes for which the services of the node wait. These are the parts of DATA,
// and swap, because the kubelet reads the size of the swap only once.
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

// Swap has the settings of a volume for swap.
type Swap struct {
	Discard      bool // discard freed pages on the disk at once
	ZswapPercent int  // percentage of the memory for compressed pages; 0: no zswap
}

func (v Volume) awaited() bool { return v.Use.IsPart() || v.Use == config.UseSwap }

// content returns the kind of content that a volume must have: "ext4" or "swap".
func (v Volume) content() string {
	if v.Use == config.UseSwap {
		return swapArea
	}
	return ext4
}

// Have is the actual state.
type Have struct {
	Disks []Disk // all disks, sorted by path
	// Matches has the results of the match expressions, by the name of the volume and then by the
	// path of the disk. A volume without an entry has an expression that was not evaluated.
	Matches map[string]map[string]bool
	Records []Record // sorted by name
	Mounts  []mount.Mount
	Areas   []swap.Area // the swap in use
	Zswap   swap.Zswap
	// Places is the state of the directories on DATA that volumes replace, by path.
	Places map[string]Place
	// Busy is true if services of the node run or start. These services use the parts of DATA.
	Busy bool
}

// Disk is a disk with its partitions.
type Disk struct {
	diskmatch.Disk
	Boot bool // the system disk
	// Table is "gpt", or "" for a blank disk, or a description of other content.
	Table string
	// First and End limit the space for partitions, in bytes. A partition starts at a multiple of
	// Alignment, in bytes.
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

// Content is the content of a partition, as far as pkg/diskprobe can identify it by a signature.
type Content struct {
	Kind string // "" if blank, "ext4", "swap", another file system, or "unknown data"
	UUID uuid.UUID
	Size uint64 // of the file system, bytes
}

// Place is the state of a path on DATA.
type Place struct {
	Link  string // target of a symbolic link; empty for other files
	Empty bool   // the path is missing, or is an empty directory
	Moved bool   // the renamed original of a Move exists beside the path
}

// movedSuffix is the end of the name to which Move renames an original.
const movedSuffix = ".moved"

// String returns a description of the disk for operators: "/dev/vdb (8 GiB, QEMU HARDDISK, serial
// disk1)".
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
	// Volumes has the volumes with a document in the order of their creation, and then the volumes
	// with only a record.
	Volumes []Planned
}

// Planned is the plan of a volume.
type Planned struct {
	Volume
	// Document is false if only the record of the volume exists, because its document was removed.
	Document bool
	Record   Record
	// Recorded is true if the record is already stored.
	Recorded bool
	// Disk is the disk of the volume. If its path is empty, there is no usable disk, and Problem
	// has the reason.
	Disk Disk
	// Partition is the partition of the volume. Its path is empty until the partition exists.
	Partition Partition
	// NewTable is true if a new partition table must be written to the blank disk.
	NewTable bool
	// Grow is the size in bytes to which the partition must grow; 0 if it must not grow.
	Grow uint64
	// Problem is the reason for which the volume cannot be used, or a remark about a usable volume;
	// "" for none.
	Problem string
	// Usable is true if the volume can be mounted; Problem is then only a remark.
	Usable bool
	// OnData is true if data on DATA prevent the use of the volume. The data on DATA stay in use.
	OnData bool
	// Mounted is true if the file system is mounted, or the swap is in use, at present.
	Mounted bool
}

// root returns the mount point of the file system of a volume.
func root(name string) string { return paths.VolumeMounts + "/" + name }

// place is a directory on DATA that a directory of a volume replaces.
type place struct {
	path string // on DATA
	dir  string // in the file system of the volume
	mode uint32
	// bind is true if the directory of the volume is mounted over the path, because programs see
	// the path through other mounts. Otherwise the path becomes a symbolic link.
	bind bool
}

// places returns the directories on DATA that a volume replaces. A rename between two of them works
// only if the places are links to one mount.
func places(v Volume) []place {
	switch v.Use {
	case config.UseMount:
		return []place{{path: paths.HostMnt + "/" + v.Name, dir: "data", mode: 0o755}}
	case config.UseEtcd: // both links lead to the same mount, so etcd can rename between them
		return []place{{path: paths.EtcdData, dir: "etcd", mode: 0o700}, {path: paths.EtcdSnapshots, dir: "etcd-kept", mode: 0o700}}
	case config.UseImages:
		return []place{{path: paths.ContainerdData, dir: "containerd", mode: 0o711}}
	case config.UseVolumes:
		return []place{{path: paths.LocalVolumes, dir: "local-volumes", mode: 0o700}}
	case config.UseLogs: // log collectors mount /var/log into their pods, so a link would not work
		return []place{{path: paths.PodLogs, dir: "pods", mode: 0o755, bind: true}, {path: paths.AuditLog, dir: "kube-audit", mode: 0o700, bind: true}}
	}
	return nil // a storageClass volume is used directly by its driver; swap has no directory
}

// ClassDir returns the directory in a volume with a StorageClass in which the driver creates
// PersistentVolumes (orchestrator/localvolumes).
func ClassDir(name string) string { return root(name) + "/" + classDir }

const classDir = "local-volumes"
