// Package rtnl implements two parts of rtnetlink(7) that github.com/jsimonetti/rtnetlink lacks:
// addresses with their protocol (IFA_PROTO, kernel 5.18), and typed notifications.
//
// Consistent is for lists that other packages read with github.com/vishvananda/netlink, because
// such a list can be incomplete if it changes during the read.
//
// The package sends and parses messages, and does not decide which addresses or links a machine
// has. Only the protocol numbers (protocols.go) belong to this system. Other packages read and
// change links and routes with the libraries.
package rtnl
