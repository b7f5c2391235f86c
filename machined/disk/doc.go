// Package disk owns the writable partitions of the machine: STATE and DATA.
//
// It makes them on first boot behind the partitions of the image, formats them, checks them before
// each mount, mounts them, and grows DATA when the disk has grown. On every later boot there is
// nothing to make; when both are mounted, there is nothing to do at all. It also lists the disks,
// for the machine's state, and empties the partitions for a reset.
//
// It never takes what is not ours. A foreign partition table, an unknown partition in the way, or a
// foreign file system where ours should be is refused with a sentence, unless the configuration
// says that it may be wiped.
//
// How it survives a power cut, operation by operation:
//
//   - The partition table is written backup first, then the primary, each flushed: one of the two is whole at any time.
//     Where a new partition will be, old signatures are wiped before the table shows it, so a new partition is blank.
//   - mke2fs writes the superblock last, after flushing everything else, and the wipe before it removes the old one
//     first. So a file system that can be seen is complete, and a half-made one looks blank and is made again.
//   - e2fsck, mount and growing are safe by themselves.
//
// The package does not choose what is stored on the partitions, does not encrypt, and does not
// write to the slots (that is machined/upgrade) or the ESP.
package disk
