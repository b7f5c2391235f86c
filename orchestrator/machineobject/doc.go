// Package machineobject connects a machine with its OrlopMachine object
// (docs/decisions/0095-machine-objects-on-the-node.md). The component runs in process "node" of
// each machine. It does nothing while Cluster.spec.kubernetes.machineObjects is disabled.
//
// The component watches the OrlopMachine with the name of its Node, with the identity of the
// kubelet. It gets the state of the machine from machined, over a socket that only root can use,
// and writes the state to the status of the object.
//
// If the object has a valid permit for another release, the component requests from machined to
// change to this release. machined accepts or rejects the request after the same checks as for an
// upgrade by an operator. The component handles an order for a repair in the same way (repair.go).
//
// The component writes the condition Updating to the status before it sends the request to
// machined. The controllers therefore never count a machine as available that is about to be away.
//
// The decisions are in step.go and repair.go and are pure.
package machineobject
