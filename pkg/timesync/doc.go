// Package timesync sets the machine's clock by NTP, in the background.
//
// Decide is pure: it turns the answers of a round into what to do with the clock. Syncer is its
// edge: it asks, does, and shows how it went. Clock is the kernel's clock.
//
// How the clock is set:
//   - At boot, before anything signs or checks a certificate, Plausible makes sure the clock is not
//     earlier than the
//     build of the system, nor decades later. A machine whose battery is empty starts in 1970 otherwise, and trusts nobody.
//   - Off by more than StepOver (128 ms, as in RFC 5905 section 11.3): the clock is stepped, forwards or backwards, at once.
//   - Off by less: the kernel slews it (adjtimex with the PLL), so that time never jumps and never runs backwards.
//   - Whatever a server says, the clock is never set before the build of the system, nor before the mark on STATE (Past).
//   - The first synchronisation since boot may set the clock by years. Afterwards one server alone cannot step it; more than half of the
//     answers, of two servers at least, can (Decide).
//
// It asks the servers it is given and no other. There is no default server: a machine that nobody
// gave one sends no packet. It does not know NTS or keys; on a network whose time cannot be
// trusted, configure servers on one that can.
package timesync
