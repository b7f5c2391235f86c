// Package power operates the power switches of machines for package machines
// (docs/decisions/0124-power-and-fencing.md). Package fence decides.
//
// Switches has the access to the power switches: it reads the Secret that an OrlopMachine or an
// OrlopHost names, and calls the management controller (BMC) in the background, one request for a
// machine at a time. It keeps the last readings in memory only, so the leader of the controllers
// decides on its own readings. Before each operation it compares the UUID of the controller with
// that of the Node.
//
// Facts has what a fence needs to know about a machine: its Lease, its pods and its power switch.
// The other functions translate Nodes, Leases and pods for package fence.
//
// The Secret of a host of the inventory has the UUID of the machine instead of its name
// (docs/decisions/0125-power-of-claims.md). Such a Secret is used only if the controller has this
// UUID, and the inventory or the Node states it, too.
//
// Passwords are in the Secret and in the requests to the controller. No object, log line or error
// contains one.
package power
