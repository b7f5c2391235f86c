// Package supervise keeps processes running. A service is data (Service), its lifecycle is a pure
// state machine (Step), and the Manager performs the actions of the state machine.
//
// Three rules shape it.
//
//   - The caller sets the whole desired state at once (Manager.Set), as often as it likes.
//     Unchanged services are not touched.
//   - Dependencies order only the start and the stop. A service is started when its dependencies
//     are ready, and stopped after its dependents. A service with an unready or crashed dependency
//     keeps running: it was written to wait, and a kill would turn one failure into many.
//   - The Reaper collects every child of the process, supervised or not, because PID 1 inherits
//     orphans and no other code may wait for "any child".
//
// The last lines of a service's output are in memory (LogRing).
//
// The package does not know the services, stores no state on disk, rotates no files, and has no
// sockets of its own. It creates control groups with pkg/kernel/cgroup; the caller decides on their
// limits.
package supervise
