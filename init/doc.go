// Command init is the first process, in the initramfs. It opens the verified root and replaces
// itself by machined.
//
// init performs these steps in order:
//
//   - Mount the pseudo file systems.
//   - Load the modules of /usr/lib/orlop/modules.list. The initramfs contains only the drivers of
//     disk controllers and watchdogs.
//   - Arm the watchdog.
//   - Wait for the partition with the root hash of the kernel command line. If it is missing, load
//     the drivers of all devices.
//   - Open the partition with dm-verity, mount it, and make it the root of the file system tree.
//   - Enter the control group of machined, and exec machined.
//
// All steps together have three minutes.
//
// Any disk may contain a partition with the root hash, because the image is public. The system disk
// is the disk from which the firmware booted, as the boot image reports
// (docs/decisions/0049-system-disk.md). If the boot disk is ambiguous, init shows the candidates
// and the remedy, and resets the machine after two minutes.
//
// The kernel argument orlop.root=… describes the root (verity.Parse). With orlop.medium=memory, the
// boot image contains the root (/system in the initramfs). init then waits for no disk and opens
// the root in memory. The files for an installation stay visible at /run/orlop/system (package
// bootenv).
//
// init has no configuration, uses no network, starts no other process and never returns. After a
// fatal error, it writes the reason in one line to the kernel log, which appears on every console
// and in the firmware's log, and resets the machine. The boot loader counts tries, so after some
// resets it starts the previous version. init never asks for input.
//
// The environment of machined:
//
//	ORLOP_SLOT             A or B: the slot of the root; empty if it runs from memory
//	ORLOP_MEDIUM           memory; missing if the root is on a disk
//	ORLOP_WATCHDOG_FD      number of the open, armed watchdog; missing if the machine has none
//	ORLOP_USERSPACE_START  start time of init, nanoseconds of CLOCK_MONOTONIC
package main
