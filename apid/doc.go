// Package apid is the management API's listener: TCP port 50000, TLS 1.3, client certificates. A
// client without a certificate can only claim an unclaimed machine by pairing and, if the
// configuration permits it, send a join request or an inventory.
//
// It is a separate process, so that the code that untrusted clients reach has no privileges: no
// root, no capability, no secret but the machine's server key. For every call it
//
//  1. has verified the client's certificate against the CAs of the operators and of the cluster's
//     machines (no session tickets: each connection is verified),
//  2. compares the role of the certificate (its organization, limited by its CA) with the role that
//     the .proto requires for the method,
//  3. forwards the call to machined's Unix socket byte for byte, without decoding it, and
//  4. writes a log line for each mutating call and each rejected call.
//
// machined receives the identity of the caller as metadata (package api). apid forwards no
// metadata of the client: machined reads none, so a client cannot forge it.
//
// apid replaces a former name of a method by the present name (api.PresentName) before step 2, so
// that a former name leads to no other decision, record or handler.
//
// apid knows no method by name, has no state between calls and never changes the machine.
package apid
