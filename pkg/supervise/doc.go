// Package supervise keeps processes running: a service is data (Service), its life is a pure state
// machine (Step), and the Manager does what the machine says.
//
// Three rules shape it.
//
//   - The whole desired state goes in at once (Manager.Set) and may be given again and again; what did not change is not
//     touched.
//   - Dependencies order starting and stopping, nothing else. A service is started when what it needs is ready and is
//     stopped after those that need it. A service whose need becomes unready or crashes is left alone: it was written to
//     wait, and killing it would turn one failure into many.
//   - Every child of the process is collected in one place (Reaper), supervised or not, because PID 1 inherits orphans and
//     nobody else may wait for "any child".
//
// The package does not know what the services are, keeps no state on disk, rotates no files, and
// has no sockets of its own. Control groups are made with pkg/cgroup; who may use how much is the
// caller's decision.
package supervise
