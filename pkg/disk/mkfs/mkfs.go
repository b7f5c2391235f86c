// Package mkfs creates file systems with the programs mke2fs and mkfs.fat, and repairs them with
// e2fsck. It passes all options explicitly, so no configuration file changes the result. The
// callers choose the partitions.
package mkfs

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/google/uuid"

	"github.com/orlop-os/orlop/pkg/disk/parttable"
	"github.com/orlop-os/orlop/pkg/paths"
)

// Ext4BlockSize is the block size of all ext4 file systems of Orlop, in bytes.
const Ext4BlockSize = 4096

// Runner runs a program (absolute path and arguments) until it exits, and returns its output. A
// nonzero exit status is an error. The caller provides the Runner, because in PID 1 a single reaper
// collects all children.
type Runner func(ctx context.Context, args ...string) ([]byte, error)

// Quotas selects the quota accounting of a file system.
type Quotas bool

const (
	NoQuotas Quotas = false
	// ProjectQuotas enables the accounting of project quotas (package projectquota). The kernel
	// then needs the module quota_v2 to mount the file system.
	ProjectQuotas Quotas = true
)

// Ext4Options are the properties of an ext4 file system.
type Ext4Options struct {
	Label           string    // at most 16 bytes
	UUID            uuid.UUID // zero: mke2fs generates a random UUID
	ReservedPercent int       // share of the blocks reserved for root
	Quotas          Quotas
}

// Ext4 creates an ext4 file system on a partition. It first wipes the old superblock. So a power
// cut leaves a blank partition, and not a damaged old file system.
//
// It does not zero the inode tables and the journal: the kernel does this in the background after
// the first mount, and records the progress in the group checksums. It does not discard the blocks,
// because on large disks a discard takes longer than all other steps.
func Ext4(ctx context.Context, run Runner, device string, o Ext4Options) error {
	_, err := wipe(device)
	if err == nil {
		_, err = run(ctx, ext4Command(device, o)...)
	}
	if err != nil {
		return fmt.Errorf("%s: cannot format %s: %w", device, o.Label, err)
	}
	return nil
}

// RepairExt4 replays the journal of an ext4 file system that is not mounted, and performs the
// repairs that need no confirmation. The exit status 1 of e2fsck means that it has repaired all
// errors, but a Runner reports each nonzero status as an error. Therefore, after an error,
// RepairExt4 runs e2fsck a second time, which succeeds if the file system is clean now.
func RepairExt4(ctx context.Context, run Runner, device string) error {
	if _, err := run(ctx, paths.E2fsck, "-p", device); err == nil {
		return nil
	}
	_, err := run(ctx, paths.E2fsck, "-p", device)
	return err
}

// ext4Command returns the command line of mke2fs.
func ext4Command(device string, o Ext4Options) []string {
	// "none" clears the default features of mke2fs.conf, which depend on the version of mke2fs.
	// Without "none", mke2fs would add the list to these defaults.
	features := "none,has_journal,extent,huge_file,flex_bg,metadata_csum,64bit,dir_nlink,extra_isize,resize_inode,dir_index,filetype," +
		"sparse_super,large_file,ext_attr"
	options := "lazy_itable_init=1,lazy_journal_init=1,nodiscard"
	if o.Quotas == ProjectQuotas {
		features += ",quota,project"
		options += ",quotatype=prjquota"
	}
	command := []string{paths.Mke2fs, "-q", "-F", "-t", "ext4", "-b", strconv.Itoa(Ext4BlockSize), "-I", "256", "-i", "16384",
		"-O", features, "-E", options, "-e", "remount-ro", "-m", strconv.Itoa(o.ReservedPercent), "-L", o.Label}
	if o.UUID != uuid.Nil {
		command = append(command, "-U", o.UUID.String())
	}
	return append(command, device)
}

// FAT32 creates a FAT32 file system, which the firmware can read, on a partition.
func FAT32(ctx context.Context, run Runner, device, label string) error {
	size, err := wipe(device)
	if err == nil {
		_, err = run(ctx, paths.MkfsFat, "-F32", "-s"+strconv.Itoa(FAT32Cluster(size)), "-n", label, device)
	}
	if err != nil {
		return fmt.Errorf("%s: cannot format %s: %w", device, label, err)
	}
	return nil
}

// FAT32Cluster returns the number of 512-byte sectors per cluster for a FAT32 file system of size
// bytes. Clusters are large, so a directory rarely needs a second cluster
// (docs/decisions/0081-fat-names.md). But if the size permits, the file system has at least twice
// the 65525 clusters that firmware expects of FAT32.
func FAT32Cluster(size uint64) int {
	const leastClusters, most = 2 << 16, 64 // 32 KiB is the largest cluster that all firmware reads
	sectors := 1
	for sectors < most && size/512/uint64(2*sectors) >= leastClusters {
		sectors *= 2
	}
	return sectors
}

// wipe empties a partition and returns its size in bytes.
func wipe(device string) (uint64, error) {
	d, err := parttable.WipePartition(device)
	if err != nil {
		return 0, err
	}
	size, err := d.GetSize()
	return size, errors.Join(err, d.Close())
}
