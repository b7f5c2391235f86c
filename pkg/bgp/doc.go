// Package bgp implements a BGP-4 session (RFC 4271) over a given connection. The session announces
// host routes; it also receives routes, which only the router in the tests uses.
//
// session.go is the state machine of a session. It is pure: the time and the messages are its
// input. run.go runs the state machine over a connection, dial_linux.go opens connections to peers,
// and message.go converts messages with the codec of github.com/osrg/gobgp.
//
// The package knows IPv4 and IPv6 unicast (RFC 4760), AS numbers of four octets (RFC 6793) and the
// TCP MD5 signature and hop limit of the kernel. It has no routing table, no policy and no route
// refresh. It has no graceful restart, because a router must drop the routes of a lost session at
// once. It never listens for connections.
//
// docs/decisions/0106-bgp.md gives the reasons.
package bgp
