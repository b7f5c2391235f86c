// Package rollout decides which machines of a cluster may change to another release now
// (docs/decisions/0095-machine-objects-on-the-node.md).
//
// A machine is behind if its wanted release differs from its running release. A machine that is
// behind gets a permit, which names the release and expires. The machine changes its release only
// with a permit. The decisions follow these rules:
//
//   - Control-plane machines go first, one at a time, and only while all others are available. The
//     leader of etcd goes last in its group. So etcd never loses its quorum by a rollout.
//   - The machines of the canary group go before the other machines with the same role.
//   - At most Policy.MaxUnavailable workers are unavailable or change their release.
//   - A machine that rolled back halts the rollout until its wanted release changes.
//   - No machine gets a new permit during a pause, outside of the maintenance windows, and while a
//     gate has not passed. Machines that have begun to change their release continue.
//
// The package is pure. The controllers write the permits into the objects of the machines; a node
// reads its own permit. The permits are the only state of a rollout. So a rollout needs no client,
// and continues after another machine has become leader of the controllers. A decision must see all
// permits that were written before it: with a stale cache, it could permit more machines than the
// policy allows.
package rollout
