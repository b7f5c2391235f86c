// Package dhcp6 is a DHCPv6 client (RFC 8415) for one link: addresses (IA_NA), a delegated prefix
// (IA_PD), or only resolvers, search domains and time servers (Information-request).
//
// It has two halves, as package dhcp for IPv4 has. Step is the state machine: a pure function
// without clock, socket and random source; its comment contains the transition table. Client owns
// the socket and the timer, and converts packets to events and actions to packets.
//
// The package does not modify the link. Its user configures the addresses of Status.Lease, reports
// whether the link can send (SetReady: a carrier, and a link-local address that is no longer
// tentative), and reports an address that another machine has (Duplicate).
//
// It deviates from RFC 8415 on purpose, because a machine waits for its address while it boots:
//
//   - The first message is sent at once, without the random delay of up to 1 s.
//   - Retransmissions begin after 250 ms instead of 1 s, then the interval doubles up to 2 minutes,
//     with a jitter of ±25 %. A server changes the longest interval with SOL_MAX_RT (option 82).
//   - The client collects advertisements until the first retransmission, not for 1 s, and takes the
//     advertisement with the highest preference; with preference 255, or by rapid commit, at once.
//   - A reply replaces all addresses and prefixes: the others are not used any more.
//   - The client never sends Release when the machine stops: the same machine requests the same
//     address after a boot. It sends Release when a configuration ends the use of DHCPv6.
//
// It sends neither Reconfigure Accept nor user classes, ignores Reconfigure, and always sends to
// the multicast group.
//
// Options are decoded separately: an unusable option is ignored and reported (Reply.Notes,
// Status.Problem), and does not reject its message.
package dhcp6
