// Package l2announcer answers on the machine's links for addresses of Services, by ARP and neighbour
// discovery (package neighbour). Package loadbalancer gave the addresses; the service proxy takes
// the packets that then come.
//
// Every node computes from the same Nodes, Services and EndpointSlices, and from which nodes it
// hears on the link (hearing.go), which node answers for which address (elect.go), and needs
// nobody's word for it. What it answers for, announces and probes follows from that and the time
// (claims.go; state.go puts it all together), where it answers from the machine's networks
// (neighbour.Place). All of that is pure, and simulation_test.go holds it to what it promises.
//
// Nothing of it is in the kernel: no address, no route, no neighbour entry. The addresses are no
// node addresses, machined's network does not know them, and when the process ends, it answers no
// more.
//
// # When a node is away
//
// A node that goes down in order is not Ready at once, and others take over. One whose machine
// dies, or is cut off from the link, is not heard any more, and others take over within 3 seconds.
// One whose machine goes on while its announcer or its kubelet does not is found out by the control
// plane, 50 to 55 seconds after it last renewed its Lease. One that is merely cut off from the API
// server knows by the age of its own Lease, 45 seconds at most, that its addresses may be somebody
// else's by now: from then on it asks the link, and for an address for which another machine goes
// on to speak it answers no more until that one is not heard for it for 20 seconds, or its own
// Lease is renewed and it has read the cluster anew. It goes on with the others, because a control
// plane that is away makes all nodes find their Leases old, and then nobody would answer.
//
// docs/decisions/0031-loadbalancer.md says why it is as it is.
package l2announcer
