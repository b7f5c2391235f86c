// Package podnetwork connects the node's pods: the bridge that they hang on, the configuration for
// the runtime's CNI plugins, the masquerading of what leaves the cluster, the node's endpoint of
// the cluster DNS, and what leads to the pods of other nodes.
//
// It begins when the Node object has its pod range; that is at once after a restart and a second
// after the first registration. What an earlier process made is used before that: the API server
// may be away. Everything follows from the range, so plan.go is pure: range in, addresses, files
// and rules out.
//
// The bridge is made here and not by the CNI plugin at the first pod, because the cluster DNS
// listens on the bridge's address (the first of the range) before there is any pod. The address is
// published as an EndpointSlice of the selector-less Service kube-system/kube-dns, whose internal
// traffic policy is Local: kube-proxy then sends a question to the cluster DNS address to the
// bridge address of the asking node, like any other Service, and no question leaves the node. An
// address of the link (169.254/16) could be the same on every node, but the API refuses it in
// endpoints.
//
// Masquerading is one static rule for the whole pod range. The CNI plugin's own (ipMasq) would add
// rules for each pod, at a program start each.
//
// Service addresses are also routed to the bridge, so that programs of the machine reach them when
// the machine has no default route: the kernel wants a route before the service proxy may rewrite
// the destination.
//
// Where something else connects the pods (Cluster.spec.external), there is none of this but the
// endpoint of the cluster DNS and the routes to Services: external.go.
//
// # Other nodes
//
// mesh.go plans, from all Nodes, what leads to the others' pods: a WireGuard tunnel, a VXLAN, or
// plain routes. diff.go compares that with what mesh_linux.go reads from the kernel, piece by
// piece, and only the difference is made. So what is in the kernel outlives this process, a change
// of one node is a change of its pieces only, and when nobody says what the Nodes are, nothing
// changes. A node that is alone has no tunnel, no key, and not even the kernel module.
//
// The tunnel's link has the bridge's address, the first of the node's own range: what the service
// proxy masquerades into the tunnel, and what programs of the machine send, has a sender that the
// other end takes from this node, and answers to it.
//
// docs/decisions/0026-pod-network.md says why it is our own, and who is believed what.
package podnetwork
