// Package netpolicy enforces NetworkPolicies (networking.k8s.io/v1) on the node's pods, with
// nftables.
//
// compile.go is pure: what the cluster has goes in, the wanted table comes out (table.go), as a
// value that can be shown, compared and, in the tests, run on packets. kernel_linux.go writes it,
// whole and at once, and reads back which one is there. follow.go keeps what is needed of Pods,
// Namespaces, NetworkPolicies and Nodes; run.go compiles when that changes, and writes when the
// table does.
//
// # The way of a packet
//
// Packets that are forwarded come to the chain egress and then to ingress; those between two pods
// on the bridge, too, because br_netfilter sends them there. In both, what belongs to a connection
// passes. Then the sender's address (in ingress the destination's) is looked up in a map; if a
// policy selects its pod, the packet goes on in a chain that asks each of the pod's policies, and
// ends with a drop:
//
//	egress ── map egress-of4 ──► egress-of-… ── jump ──► egress/NAMESPACE/POLICY ── jump ──► …/0/ports
//
// A policy's chain has the rules of its peers (hash sets of pods, ranges of ipBlocks), and a chain
// of ports for each rule that has some. Named ports are sets of address, protocol and port: of the
// policy's own pods for ingress, of the peers for egress.
//
// What the node itself sends and gets is not forwarded, so no rule concerns it.
//
// docs/decisions/0030-network-policy.md says why it is like this, what holds for a pod's first
// packet, and what does not.
package netpolicy
