// Package nodeplan derives from a configuration and facts every document that the machine needs:
// the configurations of the domains (network, host, firewall, port guard), the credentials of apid
// and of the node's processes, the description of the node for the orchestrator (pkg/nodespec), the
// files of containerd, and the services that should run.
//
// It is the only package between machined and the domains. It imports the domains and fills in
// their configurations; no domain imports this package. It is pure: it does not read files, the
// clock or the state of the kernel, and it does not write files or start processes. machined
// compares the plan with the actual state in its table of domains.
package nodeplan
