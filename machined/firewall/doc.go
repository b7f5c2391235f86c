// Package firewall says what the kernel lets in that somebody else begins with the machine (Network.spec.firewall), as a table of nft(8).
//
// It is pure. What a configuration asks for is found by its caller (machined/firewall.go), which also gives the table to the kernel.
//
// The table judges what is for the machine itself, and nothing that is for pods: that is forwarded, and is left to network policies. What
// came to a Service, or to a port of the host that leads to a pod, was let in by whoever made that; where its pod shares the machine's
// network it comes here rewritten, and is let in.
package firewall
