// Package upgrade writes the next version of the system into the other slot, and changes the boot
// entries as package slot decides.
//
//	pkg/slot        the decision: when to commit, when to roll back
//	pkg/bundle      the file that contains a version
//	inbox.go        storage of a bundle in transfer (docs/decisions/0013-bundle-on-disk.md)
//	install.go      the installation, operation by operation
//	pkg/esp         the entries in the ESP
//	record.go       the records on STATE
//
// Each operation survives a power cut (docs/decisions/0012-upgrade-order.md):
//
//   - Remove: entries of versions other than the running version are removed first, so that the
//     boot loader cannot boot a slot during the write.
//   - Write and read back: the other root partition. No entry refers to it yet.
//   - Set the GUID: the partition gets the GUID by which its boot image finds it
//     (docs/decisions/0002-slot-by-root-hash.md).
//   - Store the configuration: the active configuration, for the running version.
//   - Store the statement: the statement signed by the release key, for other machines
//     (docs/decisions/0019-from-a-peer.md).
//   - Add the boot entry: the boot image is written under a name that the boot loader ignores,
//     flushed, and renamed.
//
// The entry of the running version is never written to, so it stays bootable. The package does not
// choose the time of an upgrade, and never writes to the running slot.
package upgrade
