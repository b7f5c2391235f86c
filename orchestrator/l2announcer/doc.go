// Package l2announcer answers on the machine's links for addresses of Services, by ARP and NDP
// (package neighbor). Package loadbalancer assigns the addresses; the service proxy receives the
// packets.
//
// Every node decides without coordination which node answers for which address (elect.go), from the
// same Nodes, Services and EndpointSlices, and from the peers that it hears on the link (peers.go).
// The decision and the time determine which addresses it answers for, announces and probes
// (claims.go; state.go combines the parts). The machine's networks determine the links
// (neighbor.Place). All of this is pure, and simulation_test.go checks its guarantees.
//
// The kernel has no part of this state: no address, no route, no neighbor entry. The addresses are
// no node addresses, machined's network does not have them, and the answers end with the process.
//
// # Failures of a node
//
// A node that shuts down in order becomes unready at once, and other nodes take over. If a machine
// crashes, or is cut off from the link, its node falls silent, and other nodes take over within 3
// seconds. If a machine works while its announcer or its kubelet does not, the control plane
// detects that 50 to 55 seconds after the last renewal of the node's Lease. A node that is cut off
// only from the API server knows by the age of its own Lease, after 45 seconds at most, that other
// nodes may have taken its addresses. From then on it probes on the link. If another machine still
// claims an address, the node stops answering for it until that machine has made no claim for 20
// seconds, or until its own Lease is renewed and it has listed the cluster again. It continues to
// answer for the other addresses: during an outage of the control plane all nodes have old Leases,
// and otherwise no node would answer.
//
// docs/decisions/0031-loadbalancer.md, 0071-packet-socket.md and 0076-cut-off-announcer.md give the
// reasons.
package l2announcer
