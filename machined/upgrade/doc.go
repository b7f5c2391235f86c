// Package upgrade writes the next version of the system into the other slot, and does with the
// entries of the boot loader what package slot decides.
//
// Where to read what:
//
//	pkg/slot        the decision: when to go forward, when to go back
//	pkg/bundle      the file that a version comes in
//	inbox.go        where a bundle is kept while it comes (docs/decisions/0013-bundle-on-disk.md)
//	install.go      the writing, operation by operation
//	pkg/esp         the entries in the ESP
//	record.go       what is remembered on STATE
//
// How it survives a power cut, operation by operation (docs/decisions/0012-upgrade-order.md):
//
//   - Forget: entries of other versions than the running one go first, so that nothing starts a
//     slot that is being written.
//   - Write, Check: the other root partition. No entry knows it yet.
//   - Name: the partition gets the GUID by which its boot image finds it
//     (docs/decisions/0002-slot-by-root-hash.md).
//   - Keep: the configuration in force is kept for the running version.
//   - Statement: what the release key has signed, for other machines
//     (docs/decisions/0019-from-a-peer.md).
//   - Enter: the boot image is written under a name that the loader does not know, flushed, and
//     renamed.
//
// The entry of the running version is never written to, so it can always be started. The package
// does not choose when to upgrade, and never touches the running slot.
package upgrade
