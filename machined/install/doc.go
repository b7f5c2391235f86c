// Package install puts the system that runs from memory onto a disk of the machine.
//
// Where to read what:
//
//	choose.go       which disk, and why not the others
//	judge.go        what is on it, and whether that may go
//	plan.go         the operations, in order
//	ops_linux.go    each of them
//	read_linux.go   what is there to install
//
// A disk with anything on it is refused unless the configuration names it. The disk that the system
// came on, a read-only one and one that is too small are never taken.
//
// How it survives a power cut, operation by operation (docs/decisions/0015-install-order.md): the
// table comes first, and has no DATA, which the installed system makes when it first runs; the boot
// loader comes last, and without it the firmware passes the disk by and starts the medium again. So
// a disk with neither was cut short, and is simply installed again.
//
// The package does not make DATA, never upgrades, and never restarts the machine.
package install
