// Package resolver forwards the DNS queries of the machine's own programs to resolvers over TLS
// (RFC 7858).
//
//	message.go          headers of DNS messages: pure, with a fuzz test
//	upstream_linux.go   connections to a resolver, and the check of its certificate
//	forward_linux.go    the servers on loopback
//
// The configuration of the C library and of Go (resolv.conf) knows no TLS, so it names an address
// on loopback. The package is strict: without a resolver with a valid certificate a query fails. It
// reads only the headers and questions of messages, and caches nothing. The cluster DNS connects by
// itself (package coredns of the orchestrator), so PID 1 carries no queries of pods.
//
// docs/decisions/0100-dns-over-tls.md gives the reasons.
package resolver
