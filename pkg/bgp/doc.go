// Package bgp speaks BGP-4 (RFC 4271) over a given connection: a session that announces host routes
// and, for the router of the tests, receives them.
//
// session.go is the state machine of a session. It is pure: the clock and the messages are its
// input. run.go connects it to a connection, dial_linux.go opens connections to peers, and
// message.go converts messages with the codec of github.com/osrg/gobgp.
//
// The package knows IPv4 and IPv6 unicast (RFC 4760), AS numbers of four octets (RFC 6793) and the
// TCP MD5 signature and hop limit of the kernel. It has no table, no policy, no route refresh and
// no graceful restart: a router must drop the routes of a lost session at once. It never listens.
//
// docs/decisions/0106-bgp.md gives the reasons.
package bgp
