// Package upgrade performs the upgrades and rollbacks of a machine:
//
//  1. The machine receives and checks a bundle (receive.go). A client uploads the bundle, or the
//     machine fetches it from a registry (fetch.go) or from a peer (frompeer.go). The machine asks
//     the cluster for permission to be away (disruption.go). It takes a savepoint of the etcd data
//     (savepoint.go). It writes the new version into the other slot and saves the configuration for
//     the running version (install.go). It drains the node (package drain) and reboots.
//  2. The boot loader starts the new version and counts the try. The package records the boot
//     (boot.go). The new version is now on trial: the package runs its checks until all of them
//     pass or the deadline expires (trial.go, probes.go).
//  3. If all checks pass, the package removes the try counter from the boot entry. The version is
//     committed.
//  4. If the checks do not pass before the deadline, or if the new version panics, the package
//     marks it as failed. If the new version crashes earlier, its tries run out. In both cases the
//     boot loader starts the old version, which restores its configuration.
//
// slot.Step alone decides the effect of each event. event.go stores the resulting record and
// performs the actions. An error for a caller is a gRPC status with the code of the API.
//
//	pkg/slot        the decision: when to commit, when to roll back
//	pkg/bundle      the file that contains a version
//	inbox.go        storage of a bundle in transfer (docs/decisions/0013-bundle-on-disk.md)
//	install.go      the installation, operation by operation
//	pkg/slot/esp    the entries in the ESP
//	record.go       the records on STATE
//
// Each operation of the installation survives a power cut (docs/decisions/0012-upgrade-order.md):
//
//   - Remove: entries of versions other than the running version are removed first. The boot loader
//     therefore cannot boot the other slot during the write.
//   - Write and read back: the package writes the other root partition and reads it back. No boot
//     entry refers to this partition yet.
//   - Set the GUID: the partition gets the GUID by which the boot image of the new version finds it
//     (docs/decisions/0002-slot-by-root-hash.md).
//   - Store the configuration: the package stores the confirmed configuration as the configuration
//     of the running version. A rollback restores it.
//   - Store the statement: the package stores the signed statement of the bundle. Other machines
//     that fetch the version from this machine verify it (docs/decisions/0019-from-a-peer.md).
//   - Add the boot entry: the boot image is written under a name that the boot loader ignores,
//     flushed, and renamed.
//
// The package never writes to the running slot or to the entry of the running version, so the
// running version stays bootable. Other packages choose the time of an upgrade, judge the health of
// the services, and own the configuration and etcd. The package calls these packages by the
// functions of Deps.
package upgrade
