// Package apid is the listener of the management API: TCP port 50000, TLS 1.3, client certificates.
// A client without a certificate has three possible actions: it can pair with an unclaimed machine,
// and, if the configuration permits it, send a join request or an inventory.
//
// apid is a separate process, because untrusted clients reach its code. The process has no
// privileges: it is not root, and it has no capability and no secret except the server key of the
// machine. It verifies the client certificate of each connection against the CAs of the operators
// and of the cluster's machines. It issues no session tickets, so no connection skips the
// verification. For every call, apid
//
//  1. compares the role in the certificate (the O of its subject; each CA can give only certain
//     roles) with the role that the .proto file requires for the method,
//  2. forwards the call to machined's Unix socket byte for byte, without decoding it, and
//  3. writes a log line for each mutating call and each rejected call.
//
// apid sends the identity of the caller to machined as gRPC metadata (package api). It drops all
// metadata of the client, so a client cannot forge an identity.
//
// Before step 1, apid replaces the former name of a method by the present name (api.PresentName). A
// former name therefore has the same rule, log line and handler as the present name.
//
// apid contains no list of methods, has no state between calls and never changes the machine.
package apid
