// Package metricsd is the process that serves the metrics of the machine (Machine.spec.metrics) on
// TCP port 10262, by TLS 1.3 and HTTP/1.1, for GET only.
//
// metricsd is a separate process, because other computers reach its code. The process has no
// privileges: it is not root and has no capability. It reads only files below /proc and /sys and
// its own directory, and connects only to the sockets of the other processes of the machine
// (package exposition). It closes connections from addresses outside the configured networks. For
// every request, metricsd
//
//  1. checks the identity of the caller: a certificate for the management API with the role reader
//     or a higher one, or a token of the cluster,
//  2. reads the metrics of the host itself (package host), and the metrics of other processes from
//     their sockets, without parsing them.
//
// metricsd has no credentials for the API server, so the process orchestrator-node checks a token
// with the identity of the kubelet (nodespec.AuthorizeMetrics). metricsd caches the admission of a
// token for a minute. If no further result arrives, the cached admission is valid for five more
// minutes.
//
// limits.go has the limits of callers, connections, requests and answers.
package metricsd
