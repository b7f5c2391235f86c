// Package upgrade performs the upgrades and rollbacks of a machine:
//
//  1. A bundle is received and checked (receive.go); it is uploaded, or fetched from a registry
//     (fetch.go) or from a peer (frompeer.go). The cluster is asked whether it can spare the
//     machine (disruption.go). A savepoint of the etcd data is taken (savepoint.go). The new
//     version is written into the other slot, and the configuration is saved for the running
//     version (install.go). The node is drained (package drain), and the machine reboots.
//  2. The boot loader starts the new version and counts the attempt. The package records the boot
//     (boot.go) and watches the checks of the version on trial: all of them have to pass before
//     the deadline (trial.go, probes.go).
//  3. If all checks pass, the boot entry loses its counter, and the version is committed.
//  4. Otherwise, or if the version never reaches that point, the loader starts the old version, by
//     itself or because the package has marked the new version as failed. The old version then
//     restores its configuration.
//
// slot.Step alone decides the effect of each event; event.go stores its record and performs its
// actions. An error for a caller is a gRPC status with the code of the API.
//
//	pkg/slot        the decision: when to commit, when to roll back
//	pkg/bundle      the file that contains a version
//	inbox.go        storage of a bundle in transfer (docs/decisions/0013-bundle-on-disk.md)
//	install.go      the installation, operation by operation
//	pkg/slot/esp         the entries in the ESP
//	record.go       the records on STATE
//
// Each operation of the installation survives a power cut (docs/decisions/0012-upgrade-order.md):
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
// The entry of the running version is never written to, so it stays bootable. The package never
// writes to the running slot. It does not choose the time of an upgrade, does not judge the health
// of the machine's services, and owns neither the configuration nor etcd: the machine passes them
// in Deps.
package upgrade
