// Package volumes manages the volumes of the configuration. A volume is a partition on another disk
// than the system disk. It contains either an ext4 file system or swap. The file system is for
// hostPath volumes, for a StorageClass or for a part of DATA (for swap, see
// docs/decisions/0109-swap.md).
//
//	plan.go             selects the disk of each volume, or returns why it has none
//	diff.go             lists the operations, in order
//	ops_linux.go        performs each operation
//	record.go           stores on STATE which partitions this machine has created
//	read_linux.go       reads the mounts, the swap in use and the directories on DATA
//	controller_linux.go runs the operations when the configuration or the disks change
//	wipe_linux.go       erases a volume or a disk for an operator
//
// The record has a random GUID for the partition and a random UUID for the file system. The machine
// finds a volume by these two; the label is only for operators. If the original disk and a copy of
// it are connected, the volume is ambiguous, and the machine uses neither disk.
//
// A new partition is created only on a blank disk (docs/decisions/0082-blank-disks.md), or in the
// free space of a disk that has only recorded partitions. A partition is formatted only before its
// first use.
//
// After a power cut, a volume is either complete or can be prepared again. The operations run in
// this order: store the record, create the partition with the recorded GUID, create the file system
// with the recorded UUID, mark the record as complete. If the mark is missing, the content of the
// partition is at most the remainder of an interrupted mke2fs, and the machine formats the
// partition again. If the mark exists, the machine never formats it again.
//
// The mount point is below /run, which is empty after a boot. A symbolic link on DATA points to it.
// If the disk is missing, the target of the link does not exist, so no program can write to DATA in
// its place.
//
// The data of a part of DATA move to a volume while no service uses them. The steps are: copy,
// compare, rename the copy, rename the original, create the link. Until the rename of the original,
// the original is valid and the copy is not used.
//
// The package parses no foreign disk; pkg/diskprobe does.
package volumes
