// Command init is the first process. It is in the initramfs, opens the verified root and replaces
// itself by machined.
//
// In order: mount the pseudo file systems; load the modules named in /usr/lib/orlop/modules.list
// and the drivers of the devices found (the initramfs contains only disk controllers and
// watchdogs); arm the watchdog; wait until the kernel shows the partition that the kernel command
// line names by the root hash; open it with dm-verity; mount it; switch to it; enter the control
// group of machined; exec machined. All steps together have three minutes.
//
// Any disk may contain that partition, because the image is public. The system disk is the disk
// from which the firmware booted, as the boot image reports (docs/decisions/0049-system-disk.md).
// If the boot disk is ambiguous, init shows the candidates and the remedy, and resets the machine
// after two minutes.
//
// Kernel arguments: orlop.root=… describes the root (verity.Parse). With orlop.medium=memory the
// boot image contains the root (/system in the initramfs): init waits for no disk and opens the
// root from memory, and the files for an installation stay visible at /run/orlop/system (package
// bootenv).
//
// init has no configuration, uses no network, starts no other process and never returns. After a
// fatal error, it writes the reason in one line to the kernel log, which includes every console and
// the firmware's log, and resets the machine. The boot loader counts tries, so a reset leads back
// to a working system. There is no prompt.
//
// The environment of machined:
//
//	ORLOP_SLOT             A or B: the slot of the root; empty if it runs from memory
//	ORLOP_MEDIUM           memory; missing if the root is on a disk
//	ORLOP_WATCHDOG_FD      number of the open, armed watchdog; missing if the machine has none
//	ORLOP_USERSPACE_START  start time of init, nanoseconds of CLOCK_MONOTONIC
package main
