// Package install installs the system that runs from memory onto a disk of the machine.
//
//	choose.go       selects the disk, with reasons against the others
//	judge.go        determines the content of the disk and whether it may be lost
//	plan.go         lists the operations, in order
//	ops_linux.go    performs each operation
//	read_linux.go   reads the system to install
//	match.go        checks the expression of the disk selector (pkg/nodespec/diskmatch)
//	run.go          starts an installation and reports its progress
//
// A disk with content is rejected unless the configuration names it. The disk that the system was
// booted from, read-only disks and disks that are too small are never targets.
//
// Each operation survives a power cut (docs/decisions/0015-install-order.md). The partition table
// is written first. It has no DATA partition, which the installed system creates on its first boot.
// The boot loader is written last. Without the boot loader, the firmware skips the disk and boots
// the medium again. So a disk with neither DATA nor boot loader is an interrupted installation, and
// is installed again.
//
// The package does not create DATA and never upgrades.
package install
