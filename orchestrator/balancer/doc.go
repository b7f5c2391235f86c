// Package balancer is a TCP proxy on loopback. It accepts the connections of the node's components
// to the API server and forwards each to a working API server, so that a node outlives the loss of
// any control-plane machine. It runs in the process "node" of every machine for which there is
// another API server than its own. On a worker it listens on the loopback address that a
// control-plane machine's API server uses. On a control-plane machine with peers it listens on a
// port beside that address (kubeconfig.Balancer). A control-plane machine prefers its own API
// server.
//
// The balancer forwards bytes. TLS is between the component and the API server, and the balancer
// has no credentials: it can make a server unreachable, and nothing else.
//
// state.go decides which server is probed, which server gets the next connection, and which
// connections are closed. It reads no clock and opens no socket. Package health sends the probes,
// forward.go copies (io.Copy between two TCP connections is splice(2) on Linux, so the bytes stay
// in the kernel), and run.go connects the parts.
//
// # Times
//
// A failed server gets no new connection from 4 s after its failure on (probeInterval, timeout).
// Its connections are closed after 6.5 s (probeInterval, timeout, retryInterval, timeout), if
// another server works. If the next server has also failed silently, while it had no connections, 2
// s more pass (timeout): the balancer probes that server as soon as it has a connection. A server
// that refuses connections is noticed at the first connection, which goes to the next server at
// once. simulation_test.go verifies these times.
//
// docs/decisions/0032-balancer.md explains why the cluster's endpoint does not do this.
package balancer
