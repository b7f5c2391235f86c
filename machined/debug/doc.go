// Package debug shows an operator the state of a running machine: packets of a link, profiles of
// the system's programs, files of an allow-list, the nftables rules, and the kernel logs of the
// previous boot and of a crash.
//
// The package owns the limits of these reads and the kernel log on DATA, which it writes while the
// machine runs. It changes no other state of the machine. Its callers have authorized each call;
// errors are gRPC statuses with the codes of the API.
package debug
