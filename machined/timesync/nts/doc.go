// Package nts authenticates the answers of time servers (Network Time Security, RFC 8915).
//
//	exchange.go   the key exchange over TLS, by which a server sends keys and cookies
//	record.go     the records of the key exchange: pure, with a fuzz test
//	session.go    extension fields of NTP requests and answers: pure, with a fuzz test
//
// A Session is an extension for github.com/beevik/ntp, which reads the rest of an answer. The
// package supports a single cipher, AES-SIV-CMAC-256 (RFC 5297), because every server supports it
// (RFC 8915 section 5.1).
//
// docs/decisions/0099-nts.md gives the reasons.
package nts
