// Package network makes the machine's links, addresses, routes, host name and resolver what the
// configuration and the DHCP leases say, and keeps them so.
//
// It works as every domain does: Plan turns a configuration and facts into a Want, Read looks at
// the kernel, Diff returns the operations between the two, and an operation is one change.
// Controller is the only part that waits and remembers: it holds the configuration and the DHCP
// clients, listens to the kernel, and reconciles.
//
// # What belongs to it
//
// Others make links, addresses and routes too: the pod network (cni0, veth pairs), the service
// proxy (kube-ipvs0), the tunnel between nodes (mesh0). So that nobody fights:
//
//   - Only links that the configuration names are touched (up, MTU, sysctls), and lo. Without any configuration these
//     are the physical Ethernet links: ARPHRD_ETHER without a kind of its own (IFLA_INFO_KIND), which every virtual
//     link has. A link that is not named keeps its state, but hardware that is not named is set down.
//   - Addresses carry the mark Protocol (79) in IFA_PROTO (kernel 5.18), routes in rtm_protocol. What does not carry the
//     mark is never removed, but for what router advertisements have left on a link that is to take none. An address that is
//     wanted and exists without the mark is adopted (marked). A route that is wanted and exists without it is an error that
//     names the route.
//   - A link gets back the MTU that it had when nobody names one for it any more.
//
// # What it deliberately does not do
//
// It renames no link, makes no bond, VLAN or bridge, filters no packet, and speaks no DHCPv6 (IPv6
// is static or by router advertisement). It does not set how link-local addresses are made
// (addr_gen_mode): the kernel's default, from the MAC, is stable and known to operators. A static
// IPv6 address is used at once, without duplicate address detection (IFA_F_NODAD), because a
// service that starts with the machine cannot bind a tentative one.
package network
