// Package timesync sets the machine's clock by NTP, in the background.
//
// Decide is pure: it computes the adjustment of the clock from the answers of a round. Run sends
// the requests, performs the adjustment, and publishes the status. Clock is the kernel's clock.
//
// How the clock is set:
//   - At boot, before any certificate is signed or checked, Plausible makes sure that the clock is
//     not earlier than the build of the system, nor decades later. Otherwise a machine with an
//     empty battery would start in 1970 and trust no certificate.
//   - An offset of more than StepOver (128 ms, as in RFC 5905 section 11.3) is stepped, forwards or
//     backwards, at once.
//   - A smaller offset is slewed by the kernel (adjtimex with the PLL), so that time never jumps
//     and never runs backwards.
//   - The clock is never set before the build of the system, nor before the mark on STATE (Floor),
//     regardless of the servers.
//   - The first synchronization since boot may set the clock by years. After that a single server
//     cannot step it; more than half of the answers, from at least two servers, can (Decide).
//
// A PTP clock of the hypervisor is read beside the servers (ptp_linux.go,
// docs/decisions/0060-time.md).
//
// With NTS the answers of all servers are authenticated (association.go, authenticate_linux.go,
// package nts). There is no fall back to answers without authentication.
//
// It uses only the configured servers and clocks. There is no default server: a machine without a
// server sends no packet.
package timesync
