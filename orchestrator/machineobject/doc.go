// Package machineobject lets a machine act on its own object of Kubernetes
// (docs/decisions/0095-machine-objects-on-the-node.md). It is a component of process "node" on
// every machine, and works while Cluster.spec.kubernetes.machineObjects is enabled.
//
// The component reads the OrlopMachine with the name of its Node, with the identity of the kubelet,
// and the state of the machine from machined, over a socket of root. It writes the state into the
// status of the object. If the object has a valid permit for another release, it asks machined to
// change to this release. machined decides, with the checks of an operator's upgrade; the component
// has no way around them.
//
// The order is: the status says that the machine updates, and only then machined is asked. So the
// controllers never count a machine as available that is about to go.
//
// step.go, which is pure, decides.
package machineobject
