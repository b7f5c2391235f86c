// Package nts authenticates the answers of time servers (Network Time Security, RFC 8915).
//
//	exchange.go   keys and cookies from a server, over TLS
//	record.go     the records of this exchange: pure, with a fuzz test
//	session.go    extension fields of NTP requests and answers: pure, with a fuzz test
//
// A Session is an extension for github.com/beevik/ntp, which reads the rest of the answer. The
// cipher is AES-SIV-CMAC-256 alone (RFC 5297), which every server supports (RFC 8915 section 5.1).
//
// docs/decisions/0099-nts.md gives the reasons.
package nts
