// Package neighbor sends and receives on the machine's links for addresses that the kernel does not
// have: it answers ARP (RFC 826) for IPv4 and NDP (RFC 4861) for IPv6, announces, probes, and
// receives the claims of other machines. It also announces addresses of the machine itself and
// solicits other machines. Its users, packages l2announcer and apivip, decide about the addresses
// and the times.
//
// arp.go and ndp.go contain the packets as values; links.go maps addresses to links; timing.go has
// the times that the elections of its users share; port_linux.go and ports_linux.go have the
// sockets. The kernel has no part of this state: no address, no route, no neighbor entry. The
// answers end with the process.
package neighbor
