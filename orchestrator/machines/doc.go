// Package machines maintains the objects that describe the machines of the cluster
// (docs/decisions/0090-machine-objects.md): it creates them for machines that exist, writes their
// status, and writes the decision of a rollout (package rollout) as permits.
//
// It calls no machine. A machine reads its own objects and its permit, asks its own machined for
// the update, and writes the status of its OrlopMachine.
//
// It also maintains the objects of the cluster as a whole (package overview), from a report of its
// own machined, and has metrics of the machines (docs/decisions/0108-health-and-repair.md).
//
// Plan is the pure core: from a snapshot of all objects it computes the changes. The other files
// read the objects and perform the changes.
package machines
