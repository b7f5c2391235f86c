// Package simulation simulates nodes without machines: to the API server each looks like a kubelet.
// A node has its own connection, authenticates as its node (so the same authorization, admission
// and flow control apply), renews its Lease with the kubelet's own library, reports its status as
// often as our kubelets, watches its pods, and reports the pods that are bound to it as running.
//
//	node.go    the next report of a node, given the time and its observations
//	objects.go the objects and patches of the reports
//	fleet.go   connections, and the registration of nodes
//
// It omits the watches that a kubelet and a service proxy have besides the watch of pods (Services,
// the Node, Secrets of the pods), and addresses, so no client tries to reach a kubelet there.
package simulation
