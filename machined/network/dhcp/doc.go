// Package dhcp is a DHCPv4 client (RFC 2131) for a single link.
//
// The package has two parts. Step is the state machine: a pure function without clock, socket and
// random source. The comment of Step has the transition table. Client owns the socket and the
// timer. It converts packets to events, and actions to packets.
//
// The package does not change the link: it adds no addresses and no routes. It reports the lease in
// use (Status.Lease), and its user configures the link. It does not watch the carrier: its user
// reports changes of the carrier (SetCarrier).
//
// A machine waits for its first lease while it boots. For this reason, the package deviates from
// RFC 2131:
//
//   - The client sends the first DISCOVER at once, without the random delay of 1 to 10 s (section
//     4.4.1).
//   - Retransmissions begin after 250 ms instead of 4 s. Then the interval doubles up to 64 s, with
//     a jitter of ±25 %. The first packet after the carrier appears is often lost, because the
//     other end is not ready yet.
//   - The client takes the first acceptable OFFER and does not wait for other offers.
//   - The client requests Rapid Commit (RFC 4039). With a server that supports it, two packets are
//     enough instead of four.
//   - The client does not probe the address by ARP before its use, although sections 2.2 and 4.4.1
//     recommend the probe. It therefore never sends DHCPDECLINE.
//   - The client never sends DHCPRELEASE, because the same machine requests the same address again
//     after a reboot (INIT-REBOOT).
//
// The client accepts the irregular messages of real servers: options in the fields file and sname,
// options in parts or sent twice, a missing END, routes in option 249, several domains in option
// 15. It ignores an unusable option, and reports it (Reply.Notes, Status.Problem).
package dhcp
