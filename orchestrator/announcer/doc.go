// Package announcer answers on the machine's links for addresses of Services, by ARP and neighbour discovery (package neighbour). Package
// loadbalancer gave the addresses; the service proxy takes the packets that then come.
//
// Every node computes from the same Nodes, Services and EndpointSlices which node answers for which address (elect.go), and needs
// nobody's word for it. What it answers for, announces and probes follows from that and the time (claims.go), where it answers from the
// machine's networks (neighbour.Place).
//
// Nothing of it is in the kernel: no address, no route, no neighbour entry. The addresses are no node addresses, machined's network does
// not know them, and when the process ends, it answers no more.
//
// # When a node is away
//
// A node that goes down in order is not Ready at once, and others take over. One that dies is found out by the control plane, 50 to 55
// seconds after it last renewed its Lease. One that is merely cut off from the API server knows by the age of its own Lease, 40
// seconds at most, that its addresses may be somebody else's by now: from then on it asks the link, and for an address for which another
// machine speaks it answers no more until its Lease is renewed and it has read the cluster anew. It goes on with the others, because a
// control plane that is away makes all nodes find their Leases old, and then nobody would answer.
//
// docs/decisions/0031-loadbalancer.md says why it is as it is.
package announcer
