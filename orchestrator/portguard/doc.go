// Package portguard keeps the ports of all machines of the cluster from pods and from Services, on the
// node that packets leave or cross.
//
// machined guards the machine's own addresses (machined/firewall), and needs no API server for
// that. Here stands what takes knowing the others: a pod's packet to another machine is
// masqueraded, so that the other machine takes it for this one's. It is refused before that, in a
// table of its own, by the addresses of all Nodes. So are connections that a Service has led to
// another machine's port. What this machine and its pods begin with a machine's own port no Service
// rewrites, wherever in the cluster that machine is.
//
// plan.go is pure: addresses in, the commands of nft(8) out. run.go follows the Nodes, and, where
// only pods of some namespaces reach the kubelets, the node's own Pods. While the API server is
// away, the rules stay.
//
// docs/decisions/0052-machine-ports.md says what is refused to whom.
package portguard
