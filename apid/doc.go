// Package apid is the machine's only door for operators: TCP port 50000, TLS 1.3, client
// certificates. Without one a stranger can pair with a machine that is nobody's, and ask to join
// where the configuration says so, and no more.
//
// It is a process of its own, so that the code that strangers can reach holds nothing: no root, no
// capability, no secret but the machine's server key. For every call it
//
//  1. has verified the client's certificate against the CAs of the operators and of the cluster's machines (no session tickets: each
//     connection anew),
//  2. compares the certificate's role (its organisation, as far as its CA can give it) with the role that the .proto demands of the
//     method,
//  3. hands the call on to machined's Unix socket byte for byte, without decoding it, and
//  4. writes one line about each call that changes something, and about each that it refused.
//
// Who calls stands in the metadata that machined receives (MetadataSubject and the others). Nothing
// of the client's own metadata is passed on: machined reads none, so there is none to forge.
//
// apid knows no method by name, holds no state between calls and never changes the machine.
package apid
