// Package l2announcer answers ARP and NDP requests for the addresses of Services on the links of
// the machine. Package neighbor sends and receives the packets of ARP and NDP. Package loadbalancer
// assigns the addresses to Services. kube-proxy handles the packets that clients send to the
// addresses.
//
// Each node runs the same election and does not coordinate it with other nodes (elect.go). The
// election assigns each address to one node. Its input is the Nodes, the Services, the
// EndpointSlices, and the peers that the node hears on the link (peers.go). claims.go decides, from
// the addresses that the node won and from the time, for which addresses the node answers, and
// which addresses it announces and probes. state.go combines these parts. neighbor.Place selects
// the links of an address by the networks of the machine. All these functions are pure, and
// simulation_test.go checks their guarantees.
//
// This package adds no address, no route and no neighbor entry to the kernel. The addresses of
// Services are therefore not addresses of the node, and machined does not configure them. When the
// process ends, the node stops answering for all of them.
//
// # Failures of a node
//
// When a node shuts down in order, its Node becomes unready at once, and other nodes take over. If
// a machine crashes or loses the link, other nodes hear no packets from it and take over within 3
// seconds. If only the announcer of a machine stops, other nodes take over after 30 seconds without
// an announcement (maxMute). If only the kubelet of a machine stops, the control plane marks the
// Node as not ready 50 to 55 seconds after the last renewal of its Lease.
//
// A node that is cut off only from the API server detects this by the age of its own Lease, after
// 45 seconds at most. Other nodes may then have taken its addresses, so the node probes each
// address on the link. If another machine claims an address, the node stops answering for that
// address. It answers again in two cases: the other machine has made no claim for 20 seconds; or
// the Lease of the node was renewed, the node has listed the cluster again, and it has won the
// address again. The node continues to answer for all other addresses: during an outage of the
// control plane the Leases of all nodes are old, and otherwise no node would answer.
//
// The reasons are in docs/decisions/0031-loadbalancer.md, 0071-packet-socket.md and
// 0076-cut-off-announcer.md.
package l2announcer
