// Package rtnl implements two parts of rtnetlink(7) that github.com/jsimonetti/rtnetlink lacks:
// addresses with their protocol (IFA_PROTO, kernel 5.18), and typed notifications.
//
// Consistent is for lists that other packages read with github.com/vishvananda/netlink: the kernel
// may have truncated them.
//
// The package is a mechanism without policy: it contains messages but not their purpose, except for
// the protocol numbers (protocols.go). Links and routes are read and changed with the library.
package rtnl
