// Package machines maintains the objects that describe the machines of the cluster
// (docs/decisions/0090-machine-objects.md). It creates the objects of machines that exist, and
// writes their status. It writes the decisions of package rollout to the objects as permits, and
// the decisions of package repair as orders.
//
// The package calls no machine. Each machine reads its own OrlopMachine with the permit, requests
// the change of its release from its own machined, and writes the status of its OrlopMachine
// (package machineobject).
//
// The package also maintains the objects that describe the cluster as a whole, from a report of the
// machined of its own machine (package overview). It serves metrics of the machines
// (docs/decisions/0108-health-and-repair.md).
//
// It also operates the power switches of lost and of hung machines through their management
// controllers (packages fence and power, docs/decisions/0124-power-and-fencing.md).
//
// Plan is pure: it computes the changes from a snapshot of all objects. run.go reads the objects,
// and client.go performs the changes.
package machines
