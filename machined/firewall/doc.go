// Package firewall says what the kernel lets in that somebody else begins with the machine
// (Network.spec.firewall), as a table of nft(8), and what no Service and no pod takes of the
// machine, as another one (Guard).
//
// It is pure. What a configuration asks for is found by its caller (machined/firewall.go), which
// also gives the tables to the kernel.
//
// The firewall judges what is for the machine itself, and nothing that is for pods: that is
// forwarded, and is left to network policies. What came to a Service, or to a port of the host that
// leads to a pod, was let in by whoever made that; where its pod shares the machine's network it
// comes here rewritten, and is let in.
//
// The guard is there without a firewall, too. The service proxy and the plugin for host ports
// rewrite what is sent to a port of the machine if an object of the cluster says so; the guard
// decides before them about the machine's own ports. It also refuses pods the ports that they have
// no reason to reach. What pods send to other machines is refused on their own machine, by
// orchestrator/portguard, which knows those.
package firewall
