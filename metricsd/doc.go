// Package metricsd is the port with the metrics of the machine (Machine.spec.metrics): TCP port
// 10262, TLS 1.3, HTTP/1.1, GET only.
//
// It is a separate process, so that the code that other computers reach has no privileges: no root,
// no capability, no file but those below /proc and /sys and its own directory, and no connection
// but those to the sockets of the other processes of the machine (package exposition). For every
// request it
//
//  1. has closed the connection if the address of the caller is in none of the configured networks,
//  2. checks the identity of the caller: a certificate for the management API with the role reader
//     or a higher one, or a token of the cluster,
//  3. reads the metrics of the host itself (package host), and those of other processes from their
//     sockets, without parsing them.
//
// A token is checked by the process orchestrator-node, with the identity of the kubelet
// (nodespec.AuthorizeMetrics): metricsd has no credentials for the API server. An answer counts for
// a minute, and for five more minutes while no further answer arrives.
//
// Callers, connections, requests and answers have limits (limits.go).
package metricsd
