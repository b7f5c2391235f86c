// Package podnetwork connects the node's pods: their bridge, the configuration of the runtime's CNI
// plugins, the masquerading of packets that leave the cluster, the node's endpoint of the cluster
// DNS, and the routes to the pods of other nodes.
//
// It begins when the Node object has its pod range; that is at once after a restart and a second
// after the first registration. Before that it uses the bridge of an earlier process, because the
// API server may be down. The range determines all else, so plan.go is pure: its input is the
// range, its output addresses, files and rules.
//
// This package creates the bridge, instead of the CNI plugin at the first pod, because the cluster
// DNS listens on the bridge's address (the first of the range) before the first pod. It publishes
// the address as an EndpointSlice of the selector-less Service kube-system/kube-dns with internal
// traffic policy Local. So kube-proxy sends a query for the cluster DNS address to the bridge
// address of the same node, as for any other Service, and no query leaves the node. A link-local
// address (169.254/16) could be the same on every node, but the API rejects it in endpoints.
//
// Masquerading is one static rule for the whole pod range. The CNI plugin's own (ipMasq) would add
// rules for each pod and start a process for each.
//
// Service addresses are also routed to the bridge, so that processes of the machine reach them when
// the machine has no default route: the kernel needs a route before the service proxy may rewrite
// the destination.
//
// If an external component connects the pods (Cluster.spec.external), the package only provides the
// endpoint of the cluster DNS and the routes to Services: external.go.
//
// # Other nodes
//
// mesh.go plans the connections to other nodes' pods from all Nodes: a WireGuard tunnel, a VXLAN,
// or plain routes. diff.go compares the plan with the kernel's state from mesh_linux.go, object by
// object, and only the difference is applied. So the kernel's state outlives this process, a change
// of one node changes only its objects, and while the Nodes are unknown, nothing changes. The only
// node of a cluster has no tunnel, no key, and not even the kernel module.
//
// The tunnel's link has the bridge's address, the first of the node's own range. So packets that
// the service proxy masquerades into the tunnel, and packets of the machine's processes, have a
// source address that the other end accepts from this node and to which it can answer.
//
// docs/decisions/0026-pod-network.md and 0083-wireguard-keys.md give the reasons for an own
// implementation and its trust model.
package podnetwork
