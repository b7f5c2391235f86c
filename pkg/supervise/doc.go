// Package supervise runs processes and restarts them after a failure. A service is data (Service),
// its lifecycle is a pure state machine (Step), and the Manager performs the actions of the state
// machine.
//
// Three rules determine the design.
//
//   - The caller sets the whole desired state at once (Manager.Set), and may repeat the call at any
//     time. Set does not touch services that have not changed.
//   - Dependencies only determine the order of starts and stops. A service starts when its
//     dependencies are ready, and stops after the services that depend on it. A service
//     continues while a dependency is unready or has crashed: every service can wait for its
//     dependencies, and a restart of all dependents would turn one failure into many.
//   - The Reaper collects the exit status of every child of this process, including the orphans
//     that PID 1 inherits. No other code of this process may wait for children.
//
// The last lines of the output of each service are in memory (LogRing).
//
// The package contains no list of services. It stores no state on disk and rotates no files. It
// listens on no socket except those that its services inherit. It creates control groups with
// pkg/kernel/cgroup; the caller chooses their limits.
package supervise
