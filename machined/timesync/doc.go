// Package timesync sets the machine's clock by NTP, in the background.
//
// Decide is pure: it computes the adjustment of the clock from the answers of a round. Run sends
// the requests, performs the adjustment, and publishes the status. Clock is the kernel's clock.
//
// How the clock is set:
//   - At boot, before the machine signs or checks a certificate, Plausible sets a clock that is
//     earlier than the build of the system, or decades later, to the build time. Without this, a
//     machine with an empty battery would start in 1970 and trust no certificate.
//   - An offset of more than StepOver (128 ms, as in RFC 5905 section 11.3) is stepped at once,
//     forwards or backwards.
//   - The kernel slews a smaller offset (adjtimex with the PLL): the time does not jump or run
//     backwards.
//   - No server can set the clock before the build of the system, or before the mark on STATE
//     (Floor).
//   - The first synchronization since boot may set the clock by years. After it, a single server
//     cannot step the clock, but a quorum can: more than half of the answers, from at least two
//     servers (Decide).
//
// The package also reads a PTP clock of the hypervisor (ptp_linux.go, docs/decisions/0060-time.md).
//
// With NTS, the answers of all servers are authenticated (association.go, authenticate_linux.go,
// package nts). The package then never uses an answer without authentication.
//
// The package uses only the configured servers and clocks. There is no default server: a machine
// without a server sends no packet.
package timesync
