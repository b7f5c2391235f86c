// Package neighbor sends and receives ARP (RFC 826) and NDP (RFC 4861) packets on the machine's
// links, for addresses that the kernel does not have. It answers requests, announces and probes
// addresses, and receives the claims of other machines. It also announces addresses of the machine
// itself and solicits other machines. The packages that use it, l2announcer and apivip, decide
// about the addresses and the times.
//
// arp.go and ndp.go encode and decode the packets; links.go maps addresses to links; timing.go has
// the times that l2announcer and apivip share; port_linux.go and ports_linux.go have the sockets.
// The kernel stores no address, route or neighbor entry for these addresses. So the answers end
// with the process.
package neighbor
