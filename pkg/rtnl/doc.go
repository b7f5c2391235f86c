// Package rtnl speaks the two parts of rtnetlink(7) that github.com/jsimonetti/rtnetlink leaves
// out: addresses with their protocol mark (IFA_PROTO, kernel 5.18), and notifications told apart.
//
// Whole is for lists that others read with github.com/vishvananda/netlink: the kernel may have cut
// them short.
//
// It is a mechanism without policy: it knows messages, not what they are for, but for the marks
// (protocols.go). Links and routes are read and changed with the library.
package rtnl
