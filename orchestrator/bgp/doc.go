// Package bgp announces addresses of Services and of the Kubernetes API to routers, by BGP, on each
// node with Network.spec.bgp.
//
// plan.go decides from the Nodes, the Services, their endpoints and the API server of this machine
// which addresses the machine announces. It is pure. pkg/bgp sends the difference to each router.
// Every suitable machine announces an address, and the routers distribute connections.
//
// closed_linux.go closes the unused ports of announced addresses in the kernel.
//
// A machine withdraws an address at once when it is no longer suitable: its Node is not Ready,
// cordoned or excluded, its last endpoint is gone (externalTrafficPolicy Local), its API server is
// not ready, or the process ends. If a machine falls silent, routers drop its routes after the hold
// time. A machine that is cut off from the API server keeps its routes: during an outage of the
// control plane all machines are cut off, and without routes no machine would be reachable.
//
// docs/decisions/0106-bgp.md gives the reasons.
package bgp
