// Package podnetwork connects the node's pods. It manages their bridge, the configuration of the
// CNI plugins, the masquerading of packets that leave the cluster, the node's endpoint of the
// cluster DNS, and the routes to the pods of other nodes.
//
// The package begins when it knows the pod range of the Node object. After a restart it knows the
// range as soon as an API server answers. After the first registration, the control plane assigns
// the range within a second. Until then the package uses the addresses of the bridge of an earlier
// process, because the API server may be down. All settings follow from the pod range, so plan.go
// is pure: it maps the range to addresses, files and rules.
//
// The package creates the bridge before the CNI plugin would create it for the first pod. The
// reason is that the cluster DNS listens on the bridge's address, the first address of the range.
// The package publishes this address as an EndpointSlice of the Service kube-system/kube-dns, which
// has no selector and the internal traffic policy Local. So kube-proxy sends a query for the
// cluster DNS to the bridge of the same node, and no query leaves the node. A link-local address
// (169.254/16) could be the same on every node, but the API rejects it in endpoints.
//
// Masquerading is a single static rule for the whole pod range. The masquerading of the CNI plugin
// (ipMasq) would add rules and start a process for each pod.
//
// The addresses of Services are also routed to the bridge. The kernel needs a route before the
// service proxy can rewrite the destination. Without these routes, processes on a machine without a
// default route could not reach Services.
//
// If an external component connects the pods (Cluster.spec.external), the package only provides the
// endpoint of the cluster DNS and the routes to Services (external.go).
//
// # Other nodes
//
// mesh.go plans the connections to the pods of other nodes from all Node objects: a WireGuard
// tunnel, a VXLAN, or plain routes. diff.go compares the plan with the state of the kernel
// (mesh_linux.go), object by object, and only the differences are applied. The state of the kernel
// outlives this process. A change of one node changes only the objects of that node. While the
// Nodes are unknown, nothing changes. The only node of a cluster needs no tunnel, key or kernel
// module.
//
// The link of the tunnel has the same address as the bridge: the first address of the node's range.
// This address is the source of packets that the service proxy masquerades into the tunnel, and of
// packets of the machine's processes. The node at the other end accepts this source address from
// this node, and can send answers to it.
//
// docs/decisions/0026-pod-network.md gives the reasons for an own implementation.
// docs/decisions/0083-wireguard-keys.md describes the trust model of the WireGuard keys.
package podnetwork
