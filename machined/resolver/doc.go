// Package resolver forwards the DNS queries of the machine's own programs to resolvers over TLS
// (RFC 7858).
//
//	message.go          headers of DNS messages: pure, with a fuzz test
//	upstream_linux.go   connections to a resolver, and the check of its certificate
//	forward_linux.go    the servers on loopback
//
// The C library and Go cannot send queries over TLS themselves, so their configuration
// (resolv.conf) names an address on loopback, where this package answers. The package never sends a
// query without TLS: a query fails if no resolver has a valid certificate. The package reads only
// the headers and questions of messages and caches nothing. PID 1 carries no queries of pods: the
// cluster DNS has its own connections to the resolvers (package coredns of the orchestrator).
//
// docs/decisions/0100-dns-over-tls.md gives the reasons.
package resolver
