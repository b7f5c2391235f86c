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
//   - Forget: entries of versions other than the running version are removed first, so that the
//     boot loader cannot boot a slot during the write.
//   - Write, Check: the other root partition. No entry refers to it yet.
//   - Name: the partition gets the GUID by which its boot image finds it
//     (docs/decisions/0002-slot-by-root-hash.md).
//   - Keep: the active configuration is stored for the running version.
//   - Statement: the statement signed by the release key, for other machines
//     (docs/decisions/0019-from-a-peer.md).
//   - Enter: the boot image is written under a name that the boot loader ignores, flushed, and
//     renamed.
//
// The entry of the running version is never written to, so it stays bootable. The package does not
// choose the time of an upgrade, and never writes to the running slot.
package upgrade
