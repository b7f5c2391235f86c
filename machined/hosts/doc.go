// Package hosts has both sides of the inventory (docs/decisions/0103-inventory.md).
//
//	reporter.go  a machine without a configuration sends its inventory
//	firmware.go  the part of the inventory that the firmware tells
//	register.go  a control-plane machine lists the machines
//
// A machine that reports trusts no answer: nothing on it changes. A machine that lists stores
// nothing; it publishes the list, and writes it to a file of the controllers.
package hosts
