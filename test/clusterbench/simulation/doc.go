// Package simulation simulates nodes without machines. Towards the API server, each node behaves
// like a kubelet. It has its own connection, and authenticates as a node, so the same
// authorization, admission and flow control apply. It renews its Lease with the library of the
// kubelet, and reports its status at the interval of our kubelets. It watches its pods, and reports
// the pods that are bound to it as running.
//
//	node.go    the next actions of a node: a pure function of the time and its observations
//	objects.go the objects and patches of the reports
//	fleet.go   connections, and the registration of nodes
//
// A simulated node watches only its pods. A kubelet and a service proxy also watch Services, the
// Node and the Secrets of the pods. A simulated Node has no IP address, so no client tries to
// connect to its kubelet.
package simulation
