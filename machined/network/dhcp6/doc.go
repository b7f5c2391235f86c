// Package dhcp6 is a DHCPv6 client (RFC 8415) for a single link. It requests addresses (IA_NA), a
// delegated prefix (IA_PD), or only resolvers, search domains and time servers
// (Information-request).
//
// The package has two parts, as package dhcp for IPv4. Step is the state machine: a pure function
// without clock, socket and random source. The comment of Step has the transition table. Client
// owns the socket and the timer. It converts packets to events, and actions to packets.
//
// The package does not change the link. Its user configures the addresses of Status.Lease. Its user
// also reports whether the link can send (SetReady), and whether another machine has an address
// (Duplicate). A link can send if it has a carrier and a link-local address that is no longer
// tentative.
//
// A machine waits for its address while it boots. For this reason, the package deviates from RFC
// 8415:
//
//   - The client sends the first message at once, without the random delay of up to 1 s.
//   - Retransmissions begin after 250 ms instead of 1 s. Then the interval doubles up to 2 minutes,
//     with a jitter of ±25 %. A server can change the longest interval with SOL_MAX_RT (option 82).
//   - The client collects Advertise messages until the first retransmission and not for 1 s, and
//     then takes the Advertise with the highest preference. It takes an Advertise with preference
//     255, and a Reply with rapid commit, at once.
//   - The addresses and prefixes of a Reply replace all addresses and prefixes of the lease.
//   - The client sends no Release when the machine stops, because the same machine requests the
//     same address after its next boot. It sends a Release when a configuration ends the use of
//     DHCPv6.
//
// The client sends neither Reconfigure Accept nor user classes. It ignores Reconfigure. It sends
// all messages to the multicast group.
//
// Each option is decoded separately. The client ignores an unusable option and reports it
// (Reply.Notes, Status.Problem), but uses the rest of the message.
package dhcp6
