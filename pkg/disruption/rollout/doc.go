// Package rollout decides which machines of a cluster may change to another release now
// (docs/decisions/0095-machine-objects-on-the-node.md).
//
// A machine is behind if its wanted release differs from its running release. A machine that is
// behind gets a permit, which names the release and expires. The machine changes its release only
// with a permit. The decision holds these rules:
//
//   - Control-plane machines go first, one at a time, and only while all others are available. The
//     leader of etcd goes last in its group. So etcd never loses its quorum by a rollout.
//   - The canary group goes before the other machines of its role.
//   - At most Policy.MaxUnavailable workers are unavailable or in progress.
//   - A machine that rolled back halts the rollout until its wanted release changes.
//   - A pause, a closed maintenance window and a gate that has not passed give no new permit.
//     Machines in progress continue.
//
// The package is pure. The controllers write the permits into the objects of the machines; a node
// reads its own permit. A permit is the whole state of a rollout, so a rollout survives the loss of
// the leading controllers and of each client. A decision must see all permits that were written
// before: a stale cache would permit more machines than the policy.
package rollout
