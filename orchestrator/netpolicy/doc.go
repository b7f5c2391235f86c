// Package netpolicy enforces NetworkPolicies (networking.k8s.io/v1) for the node's pods with
// nftables.
//
// compile.go is pure: it turns the cluster's objects into the wanted table (table.go), a value that
// can be printed, compared and, in the tests, applied to packets. kernel_linux.go replaces the
// table in the kernel in one transaction, and reads the fingerprint of the present one. watch.go
// caches the needed fields of Pods, Namespaces, NetworkPolicies and Nodes; run.go compiles after a
// change of them, and writes after a change of the table.
//
// # The path of a packet
//
// Forwarded packets traverse the chain egress and then ingress; br_netfilter also sends packets
// between two pods on the bridge there. Both chains accept packets of established connections. Then
// they look up the source address (in ingress the destination) in a map. If a policy selects its
// pod, the packet continues in a chain that jumps to each of the pod's policies and ends with a
// drop:
//
//	egress ─ map egress-of4 ─► egress-of-… ─ jump ─► egress/NAMESPACE/POLICY ─ jump ─► …/0/ports
//
// A policy's chain has the rules of its peers (hash sets of pods, ranges of ipBlocks), and a chain
// of ports for each rule with ports. Named ports are sets of address, protocol and port: of the
// policy's own pods for ingress, of the peers for egress.
//
// Packets from and to the node itself are not forwarded, so no rule applies to them.
//
// docs/decisions/0030-network-policy.md gives the reasons and the limits, 0074-first-packet.md the
// guarantees for a pod's first packet, 0084-policy-table.md the size of the table.
package netpolicy
