// Package netpolicy enforces NetworkPolicies (networking.k8s.io/v1) for the node's pods with
// nftables.
//
// compile.go is pure. It turns the cluster's objects into the wanted table (table.go). The table is
// a value: it can be printed and compared, and the tests apply it to packets. kernel_linux.go
// replaces the table in the kernel in one transaction, and reads the fingerprint of the table in
// the kernel. watch.go caches the needed fields of Pods, Namespaces, NetworkPolicies and Nodes.
// run.go compiles the table after a change of these objects, and writes the table if it has
// changed.
//
// # The path of a packet
//
// Forwarded packets traverse the chain egress and then the chain ingress. Because of br_netfilter,
// packets between two pods on the bridge do so, too. Both chains accept packets of established
// connections. Other packets are looked up in a map: by their source address in egress, by their
// destination address in ingress. If policies select the pod with the address, the packet continues
// in a chain that jumps to each of these policies and ends with a drop:
//
//	egress ─ map egress-of4 ─► egress-of-… ─ jump ─► egress/NAMESPACE/POLICY ─ jump ─► …/0/ports
//
// The chain of a policy has rules for its peers (hash sets of pods, ranges of ipBlocks). Each rule
// with ports jumps to a chain of ports. Named ports are sets of address, protocol and port. The
// addresses are those of the selected pods for ingress, and those of the peers for egress.
//
// Packets from and to the node itself are not forwarded, so no rule applies to them.
//
// docs/decisions/0030-network-policy.md gives the reasons and the limits, 0074-first-packet.md the
// guarantees for the first packet of a pod, 0084-policy-table.md the size of the table.
package netpolicy
