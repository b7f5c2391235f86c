// Package portguard keeps pods and Services from the ports of all machines of the cluster, on the
// node that the packets leave or cross.
//
// machined protects the machine's own addresses (machined/firewall) and needs no API server for
// that. This package handles the rules that depend on the other machines: the packet of a pod to
// another machine is masqueraded, so the other machine takes it for a packet of this machine. The
// package rejects it before that in a separate table, by the addresses of all Nodes. It also
// rejects connections that a Service redirects to another machine's port. No Service rewrites
// connections of this machine and its pods to a machine's own port, on any machine of the cluster.
//
// plan.go is pure: its input is addresses, its output commands of nft(8). run.go watches the Nodes,
// and also the node's own Pods if only pods of some namespaces reach the kubelets. While no API
// server is reachable, the rules stay. The kubelet starts no pod before the kernel has the first
// table.
//
// docs/decisions/0052-machine-ports.md lists the rejected ports and sources.
package portguard
