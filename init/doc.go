// Command init is the first process. It lives in the initramfs, opens the verified root and becomes
// machined.
//
// In order: mount the pseudo file systems; load the modules named in /usr/lib/orlop/modules.list
// and those that fit the devices found (only what the initramfs holds: disk controllers and
// watchdogs); arm the watchdog; wait until the kernel shows the partition that the kernel command
// line names by the root hash; open it with dm-verity; mount it; move into it; exec machined. All
// of it has three minutes.
//
// Any disk may hold that partition, because the image is public. The system disk is the one that
// the firmware booted, as the boot loader tells (docs/decisions/0049-system-disk.md). If that
// cannot be told, init shows the disks in question and what to do, and resets the machine after two
// minutes.
//
// Kernel arguments: orlop.root=… describes the root (verity.Parse). With orlop.medium=memory the
// root came with the boot image (/system in the initramfs): no disk is waited for, the root is
// opened from memory, and what an installation needs stays visible at /run/orlop/system (package
// medium).
//
// It has no configuration, uses no network, starts no other process and never returns. When it
// cannot go on, it says why in one line through the kernel log, which is every console and the
// firmware's log, and resets the machine. The boot loader counts tries, so a reset is the way back
// to a system that works. There is no prompt.
//
// What machined gets in its environment:
//
//	ORLOP_SLOT             A or B: the slot that the root was opened from; empty if it runs from memory
//	ORLOP_MEDIUM           memory; missing if the root lies on a disk
//	ORLOP_WATCHDOG_FD      number of the open, armed watchdog; missing if the machine has none
//	ORLOP_USERSPACE_START  when init began, nanoseconds of CLOCK_MONOTONIC
package main
