// Package balancer takes the connections of the node's components to the API server and carries
// each to one that works, so that a node outlives the loss of any control-plane machine. It runs in
// the process "node" of every machine that there is another API server for than its own: of
// workers, on the loopback address on which a control-plane machine has its API server, and of
// control-plane machines that are not alone, on a port beside that (kubeconfig.Balancer). A
// control-plane machine prefers its own.
//
// What goes through is bytes. TLS is between the component and the API server, and the balancer has
// no credentials: it can make a server unreachable, and nothing else.
//
// Which server is asked whether it works, which one gets the next connection, and whose connections
// are closed is decided in state.go, which looks at no clock and opens no socket. package health
// asks, carry.go copies (io.Copy between two TCP connections is splice(2) on Linux, so the bytes
// stay in the kernel), run.go puts them together.
//
// # Times
//
// A server that has stopped working gets no new connection after 4 s (steady, patience), and its
// connections are closed after 6.5 s (steady, patience, again, patience), when another one works.
// If the one that is next has ceased to work before without a word, and nobody used it, that takes
// 2 s more (patience): it is asked as soon as it has a connection. A server that refuses
// connections is noticed by the first one, which goes to the next server at once.
// simulation_test.go holds the decisions to that.
//
// docs/decisions/0032-balancer.md says why it is not the cluster's endpoint that does this.
package balancer
