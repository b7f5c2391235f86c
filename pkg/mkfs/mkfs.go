// Package mkfs makes file systems by running the programs that know how: mke2fs and mkfs.fat.
// Everything is said explicitly, so that no configuration file is needed. It does not choose what
// lies where.
package mkfs

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/orlop-os/orlop/pkg/parttable"
	"github.com/orlop-os/orlop/pkg/paths"
)

// Ext4BlockSize of our ext4 file systems, in bytes.
const Ext4BlockSize = 4096

// Runner runs a program (absolute path and arguments) to its end and returns its output. A status
// other than 0 is an error. It is given from outside because PID 1 reaps all children in one place.
type Runner func(ctx context.Context, args ...string) ([]byte, error)

// Quotas says what a file system counts.
type Quotas bool

const (
	NoQuotas Quotas = false
	// ProjectQuotas lets the file system count what belongs to each project (package projectquota).
	// The kernel mounts it only when it has its module quota_v2.
	ProjectQuotas Quotas = true
)

// Ext4 makes an ext4 file system on a partition. The old superblock goes first and is on the disk
// before mke2fs begins, so that a cut leaves a blank partition.
//
// Inode tables and the journal are not zeroed now: the kernel does that in the background after the
// first mount, and the checksums of the groups say what is done. The disk is not discarded: on
// large disks that takes longer than all the rest.
func Ext4(ctx context.Context, run Runner, device, label string, reservedPercent int, quotas Quotas) error {
	features := "has_journal,extent,huge_file,flex_bg,metadata_csum,64bit,dir_nlink,extra_isize,resize_inode,dir_index,filetype," +
		"sparse_super,large_file,ext_attr"
	options := "lazy_itable_init=1,lazy_journal_init=1,nodiscard"
	if quotas == ProjectQuotas {
		features += ",quota,project"
		options += ",quotatype=prjquota"
	}
	_, err := wipe(device)
	if err == nil {
		_, err = run(ctx, paths.Mke2fs, "-q", "-F", "-t", "ext4", "-b", strconv.Itoa(Ext4BlockSize), "-I", "256", "-i", "16384",
			"-O", features, "-E", options, "-e", "remount-ro",
			"-m", strconv.Itoa(reservedPercent), "-L", label, device)
	}
	if err != nil {
		return fmt.Errorf("%s: cannot format %s: %w", device, label, err)
	}
	return nil
}

// FAT32 makes the file system that firmware reads on a partition.
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

// FAT32Cluster is how many sectors of 512 bytes are one cluster of a FAT32 of size bytes: as many
// as leave it twice the clusters that firmware expects of FAT32 (65525), so that a folder seldom
// needs another one (docs/decisions/0012-upgrade-order.md).
func FAT32Cluster(size uint64) int {
	const leastClusters, most = 2 << 16, 64 // 32 KiB are the most that everybody reads
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
