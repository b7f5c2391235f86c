// Package hardware translates the state of the disks and the links of the machine into the forms of
// the parts that use them: volumes, the wear of disks, LLDP, the inventory, installations and
// upgrades.
//
//	disks.go    the state of package disk
//	install.go  the same for installations and upgrades
//	links.go    the state of package network
//
// The parts of machined do not import each other, and each has a type with the properties that it
// needs. The package is pure: it reads no device.
package hardware
