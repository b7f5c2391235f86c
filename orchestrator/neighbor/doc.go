// Package neighbor speaks on the machine's links for addresses that the kernel does not have: it
// answers to ARP (RFC 826) for IPv4 and to neighbour discovery (RFC 4861) for IPv6, announces,
// asks, and hears who else speaks for them. It also announces addresses of the machine's own, and
// asks other machines for theirs. Which addresses, and when, is its users': packages announcer and
// virtualaddress.
//
// arp.go and ndp.go are the packets, as values; links.go says where an address belongs; pace.go
// what its users' elections have in common; port_linux.go and ports_linux.go have the sockets.
// Nothing of it is in the kernel: no address, no route, no neighbour entry. When the process ends,
// it answers no more.
package neighbor
