// Package disk manages the writable partitions of the machine: STATE and DATA.
//
// On first boot it creates them behind the partitions of the image and formats them. It checks them
// before each mount, mounts them, and grows DATA after the disk has grown. Later boots create
// nothing; if both volumes are mounted, there are no operations. The package also lists the disks
// for the machine's state, and empties the partitions for a reset. Controller does this for
// machined, and examines foreign disks in a sandboxed process (pkg/diskprobe).
//
// The package never overwrites foreign content. It rejects a foreign partition table, an unknown
// partition in the required range, or a foreign file system in place of its own, unless the
// configuration permits wiping.
//
// Each operation survives a power cut:
//
//   - The partition table: the backup is written first, then the primary, each with a flush. So
//     at least one valid copy exists at any time. Before the table lists a new partition, old
//     signatures in its range are wiped, so a new partition is blank.
//   - mke2fs writes the superblock last, after it has flushed all other blocks, and the wipe before
//     mke2fs removes the old superblock first. So a visible file system is complete, and an
//     incomplete file system looks blank and is created again.
//   - e2fsck, mount and growing are safe by themselves.
//
// STATE and DATA can be encrypted (0127). STATE then has a secret without which DATA does not open,
// so each is used only beside the other: an attacker with the disk cannot replace one of them. The
// header of a new volume gets its final label last, so an interrupted format counts as blank. A
// header that is damaged or was changed locks its volume, and nothing overwrites it.
//
// The package does not choose the content of the partitions, and does not write to the slots
// (machined/upgrade does) or the ESP.
package disk
