// Package nodeplan derives from a configuration and facts every document that the machine needs:
// the configurations of the domains (network, host, firewall, port guard), the credentials of apid
// and of the node's processes, the description of the node for the orchestrator (pkg/nodespec), the
// files of containerd, and the services that should run.
//
// It is the only package between the domains and machined: it fills their configurations, and they
// do not know it. It is pure: it reads no file, no clock and no kernel. It writes and starts
// nothing; machined's table of domains compares the plan with the actual state.
package nodeplan
