// Package simulation has nodes that are no machines: to the API server each looks like a kubelet.
// It has a connection of its own, acts as its node (so the same authorization, admission and flow
// control apply), renews its Lease with the kubelet's own library, reports its status as often as
// ours does, watches its pods, and says of those that are bound to it that they run.
//
//	node.go    what a node says next, given the time and what it has seen
//	objects.go the objects and patches that it says it with
//	fleet.go   connections, and who is registered when
//
// What it leaves out: the watches that a kubelet and a service proxy hold beside that of pods
// (Services, its Node, Secrets that pods use), and addresses, so that nobody tries to reach a
// kubelet there.
package simulation
