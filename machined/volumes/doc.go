// Package volumes manages the volumes of the configuration: partitions with ext4 on disks other
// than the system disk, for hostPath volumes, for a StorageClass, or for a part of DATA; or with
// swap (docs/decisions/0109-swap.md).
//
//	plan.go             selects the disk of each volume, or says why it has none
//	diff.go             lists the operations, in order
//	ops_linux.go        performs each operation
//	record.go           the record on STATE of the partitions that this machine has created
//	read_linux.go       reads mounts, swap in use and places
//	controller_linux.go runs the operations when the configuration or the disks change
//	wipe_linux.go       erases a volume or a disk, on the call of an operator
//
// A volume is found by the random GUIDs of its partition and of its file system, which the record
// holds; a label is only for operators. A disk with copied GUIDs beside the original makes the
// volume ambiguous, and then neither disk is used. Only a blank disk
// (docs/decisions/0082-blank-disks.md), or free space on a disk with nothing but recorded
// partitions, gets a new partition. A partition is formatted only before its first use.
//
// A power cut leaves each volume whole or repeatable. The record comes first, then the partition
// with the recorded GUID, then the file system with the recorded UUID, then the mark in the record
// that the file system was complete. Without the mark, the content of the recorded partition is of
// an interrupted mke2fs, and is formatted again; with the mark, it never is.
//
// The mount point is below /run, which is empty after a boot. A symbolic link on DATA leads to it:
// if the disk is missing, the link leads nowhere, and no program can write to DATA in its place.
//
// A part of DATA with data moves while no service uses it: copy, comparison, rename of the copy,
// rename of the original, link. Until the rename of the original, the original counts.
//
// The package parses no foreign disk (pkg/diskprobe does).
package volumes
