// Package apivip lets one control-plane machine at a time hold a virtual address of the cluster's
// API (Cluster.spec.virtualAddresses) and answer ARP and NDP requests for this address (package
// neighbor). The holder is a machine with a ready API server. When that API server is no longer
// ready, another machine takes the address within 5 seconds.
//
// state.go decides whether this machine holds the address, from the claims on the link and the
// readiness of the API servers. servers.go derives the readiness from the answers to probes. Both
// are pure, and simulation_test.go verifies their guarantees. The decision uses neither etcd nor
// Kubernetes objects: the holder announces itself on the link every 0.4 seconds, and the others
// listen. If the holder is silent, the others probe the link before another machine takes the
// address. nat_linux.go makes the kernel redirect connections to the address to the API server.
//
// The address is configured on no link: machined's network code does not know the address, and
// Kubernetes does not count it among the addresses of the node.
//
// docs/decisions/0034-virtual-address.md and 0075-virtual-address-translation.md contain the
// reasons.
package apivip
