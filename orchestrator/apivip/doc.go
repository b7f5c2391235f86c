// Package apivip has one control-plane machine at a time answer for an address of the
// cluster's API (Cluster.spec.virtualAddresses), by ARP and neighbour discovery (package
// neighbour): one whose API server is ready, and another one within 5 seconds when it is not any
// more.
//
// state.go decides whether this machine answers, from what was heard on the link and from whether
// the API servers are ready; servers.go decides that from the answers to questions. Both are pure,
// and simulation_test.go holds them to what they promise. Nothing is asked of etcd or of
// Kubernetes' objects: whoever answers says so on the link every 0.4 seconds, the others listen,
// and ask the link before one of them takes the place of a machine that is not heard any more.
// nat_linux.go has the kernel hand what comes for the address to the API server.
//
// The address is on no link: machined's network does not know it, and it is none of the node's
// addresses.
//
// docs/decisions/0034-virtual-address.md says why it is as it is.
package apivip
