// Package dhcp is a DHCPv4 client (RFC 2131) for one link.
//
// It has two halves. Step is the state machine: pure, no clock, no socket, no random source; the
// table stands above it. Client is its thin edge: it owns the sockets and the timer, turns packets
// into events and actions into packets.
//
// The package does not touch the link. It never adds an address or a route: it says which lease is
// in force (Status.Lease), and its user makes the link so. It does not watch carriers either; its
// user reports them (SetCarrier).
//
// What differs from RFC 2131, on purpose, because a machine waits for the first lease while it
// boots:
//   - The first DISCOVER leaves at once, without the random wait of 1 to 10 s (section 4.4.1).
//   - Retransmissions begin after 250 ms instead of 4 s, then double up to 64 s, with a quarter of
//     jitter either way: the
//     first packet after a carrier comes is often lost, because the other end is not ready yet.
//   - The first acceptable OFFER is taken; there is no waiting for a better one.
//   - Rapid Commit (RFC 4039) is asked for, and taken when the server knows it: two packets instead
//     of four.
//   - The address is not probed by ARP before it is used (sections 2.2 and 4.4.1 recommend it), so
//     DHCPDECLINE is never sent.
//   - DHCPRELEASE is never sent: the same machine asks for the same address again after a restart
//     (INIT-REBOOT).
//
// Messages are taken as servers are found to send them: options in the fields file and sname,
// options in parts or sent twice, no END, routes in option 249, several domains in option 15.
// What cannot be used is left out and said (Reply.Notes, Status.Problem).
package dhcp
