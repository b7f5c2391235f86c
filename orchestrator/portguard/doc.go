// Package portguard protects the ports of all machines of the cluster from pods and Services. It
// works on the node that the packets leave or cross.
//
// machined protects the machine's own addresses (machined/firewall), for which it needs no API
// server. This package has the rules that depend on the other machines. The node masquerades a
// packet of a pod to another machine, so the other machine cannot distinguish the packet from a
// packet of this machine. Therefore a separate table of this package rejects the packet on this
// node, by the addresses of all Nodes. The table also rejects a connection that a Service redirects
// to a port of another machine. Services do not redirect connections of this machine and its pods
// to a port of any machine.
//
// plan.go is pure: it turns addresses into commands of nft(8). run.go watches the Nodes. If only
// the pods of some namespaces may reach the kubelets, it also watches the node's own Pods. While no
// API server is reachable, the rules stay. The kubelet starts no pod before the kernel has the
// first table.
//
// docs/decisions/0052-machine-ports.md lists the rejected ports and sources.
package portguard
