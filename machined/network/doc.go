// Package network converges the links, addresses, routes, rules, host name and resolver of the
// machine. The desired state follows from the configuration, the DHCP leases and the router
// advertisements.
//
// The package has the parts of every domain. Plan computes the desired state (Want) from a
// configuration and facts. Kernel.Read reads the actual state (Have). Diff compares both and
// returns operations. Kernel.Do performs an operation, which is a single change. Only Controller
// has state: it runs the DHCP clients, receives the notifications of the kernel, and reconciles.
//
// # Ownership
//
// Other components also create links, addresses and routes: the pod network (cni0, veth pairs), the
// service proxy (kube-ipvs0), the tunnel between nodes (mesh0). These rules avoid conflicts:
//
//   - The package manages the links that the configuration selects, the hardware below these links,
//     and lo. Without a configuration it manages the physical Ethernet links. These have the type
//     ARPHRD_ETHER and no kind; every virtual link has a kind (IFLA_INFO_KIND).
//   - The package sets managed links up, and sets their MTU and sysctls. It sets all other physical
//     Ethernet links down. It does not change the links of other components.
//   - A link that the package creates carries the mark from its creation on. The mark is the number
//     Protocol (79) in IFLA_GROUP. The package deletes and recreates only links with the mark.
//   - Addresses carry the mark in IFA_PROTO (kernel 5.18), routes in rtm_protocol, and rules in
//     FRA_PROTOCOL. The package removes only objects with the mark, with an exception: from a link
//     that accepts no router advertisements, it removes the addresses and routes of earlier router
//     advertisements.
//   - If a wanted address exists without the mark, the package adopts the address: it adds the
//     mark. If a wanted route exists without the mark, the operation fails with an error that names
//     the route.
//   - A link gets its original MTU back when neither its configuration nor its lease sets an MTU
//     any more.
//
// # IPv6
//
// The kernel receives router advertisements, and configures addresses and routes from them. The
// package reads two parts of a router advertisement from rtnetlink: the flags that select DHCPv6,
// and the options with resolvers and search domains. The package opens an ICMPv6 socket only to
// send router solicitations. An address from DHCPv6 passes duplicate address detection, and becomes
// an address of the node only after the detection. docs/decisions/0097-ipv6.md has the reasons.
//
// # Out of scope
//
// The package renames no link, filters no packet, and sends no router advertisements. It does not
// change how the kernel generates link-local addresses (addr_gen_mode). By default the kernel
// derives them from the MAC, so they are stable and known to operators. The package adds a static
// IPv6 address without duplicate address detection (IFA_F_NODAD), because a service that starts at
// boot cannot bind an address that is still tentative.
package network
