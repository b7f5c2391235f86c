// Package identity holds the machine key, by which operators and other machines recognize the
// machine.
//
// The first boot creates the key and stores it on STATE. Without a disk the key is in memory until
// power-off, or until the machine gets a disk.
//
// The package issues no certificate for the key except the certificate with which it is stored,
// which only carries the name of the key: machined/nodeplan issues the others.
package identity
