// Package network converges the machine's links, addresses, routes, host name and resolver to the
// configuration, the DHCP leases and router advertisements.
//
// It works as every domain does: Plan turns a configuration and facts into a Want, Read reads the
// kernel, Diff returns the operations between the two, and an operation is a single change. Only
// Controller waits and has state: it has the configuration and the DHCP clients, receives kernel
// notifications, and reconciles.
//
// # Ownership
//
// Other components also create links, addresses and routes: the pod network (cni0, veth pairs), the
// service proxy (kube-ipvs0), the tunnel between nodes (mesh0). These rules avoid conflicts:
//
//   - The package changes only links that the configuration names (up, MTU, sysctls), the hardware
//     below them, and lo. A link that it creates carries the mark Protocol (79) in IFLA_GROUP from
//     its creation on; a link without the mark is neither deleted nor created again.
//     Without a configuration these are the physical Ethernet links: ARPHRD_ETHER without a kind
//     (IFLA_INFO_KIND), which every virtual link has. A link that is not named keeps its state, but
//     hardware that is not named is set down.
//   - Addresses carry the mark Protocol (79) in IFA_PROTO (kernel 5.18), routes in rtm_protocol. An
//     address or route without the mark is never removed, except for results of router
//     advertisements on a link that must accept none. A wanted address that exists without the mark
//     is adopted (marked). A wanted route that exists without the mark is an error that names the
//     route.
//   - A link gets back its original MTU when no configuration or lease sets an MTU for it any more.
//
// # IPv6
//
// The kernel receives router advertisements, and takes addresses and routes from them. The package
// reads the flags for DHCPv6 and the options for user space from rtnetlink: it opens no ICMPv6
// socket except to send solicitations. An address from DHCPv6 passes duplicate address detection;
// until then it is no address of the node. docs/decisions/0097-ipv6.md has the reasons.
//
// # Out of scope
//
// The package renames no link, filters no packet, and sends no router advertisements. It does not
// change the generation of link-local addresses (addr_gen_mode): the kernel's default, from the
// MAC, is stable and known to operators. A static IPv6 address is usable at once, without duplicate
// address detection (IFA_F_NODAD), because a service that starts at boot cannot bind a tentative
// address.
package network
