// Package dhcp is a DHCPv4 client (RFC 2131) for one link.
//
// It has two halves. Step is the state machine: a pure function without clock, socket and random
// source; its comment contains the transition table. Client owns the sockets and the timer, and
// converts packets to events and actions to packets.
//
// The package does not modify the link. It adds no addresses or routes: it reports the lease in use
// (Status.Lease), and its user configures the link. It does not watch the carrier either; its user
// reports it (SetCarrier).
//
// It deviates from RFC 2131 on purpose, because a machine waits for the first lease while it boots:
//
//   - The first DISCOVER is sent at once, without the random delay of 1 to 10 s (section 4.4.1).
//   - Retransmissions begin after 250 ms instead of 4 s, then the interval doubles up to 64 s, with
//     a jitter of ±25 %: the first packet after the carrier appears is often lost, because the
//     other end is not ready yet.
//   - The client takes the first acceptable OFFER and does not wait for a better one.
//   - The client requests Rapid Commit (RFC 4039) and uses it if the server supports it: two
//     packets instead of four.
//   - The client does not probe the address by ARP before its use (sections 2.2 and 4.4.1 recommend
//     it), so it never sends DHCPDECLINE.
//   - The client never sends DHCPRELEASE: the same machine requests the same address again after a
//     reboot (INIT-REBOOT).
//
// The client accepts the messages of real servers: options in the fields file and sname, options in
// parts or sent twice, no END, routes in option 249, several domains in option 15. It ignores and
// reports unusable options (Reply.Notes, Status.Problem).
package dhcp
