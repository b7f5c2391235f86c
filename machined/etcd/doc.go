// Package etcd operates on the etcd data of a control-plane machine: snapshots by request and by
// schedule, their upload, restore, members (docs/decisions/0025-etcd-restore.md,
// 0029-members.md, 0066-scheduled-snapshots.md, 0069-etcd-operations.md, 0085-snapshot-upload.md).
//
// The orchestrator owns etcd and its files (orchestrator/etcd); it interprets the data and decides
// which changes are safe. This package decides when an operation runs, and excludes operations that
// would conflict. For this package, the data are bytes in a file without a name, which disappears
// if the call is interrupted. It starts no etcd: it restarts the service that runs etcd. Errors are
// gRPC statuses with the codes of the API.
package etcd
