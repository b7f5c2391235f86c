package podnetwork

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"github.com/orlop-os/orlop/pkg/kernel/rtnl"
)

// table is the name of this package's nftables table. It has the rules of the plan for packets of
// pods: some packets are masqueraded, and some are dropped. The service proxy has a separate table.
const table = "orlop_pods"

// ensureBridge creates the bridge if it is missing, sets exactly the given addresses and the MTU,
// and sets the bridge up.
func ensureBridge(gateways []netip.Prefix, mtu int) error {
	link, err := ensureLink(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: Bridge}})
	if err != nil {
		return err
	}
	// A bridge without an explicit hardware address takes the lowest hardware address of its ports.
	// A change of that address would make the neighbor entries of pods wrong.
	if err := netlink.LinkSetHardwareAddr(link, link.Attrs().HardwareAddr); err != nil {
		return fmt.Errorf("%s: cannot fix hardware address: %w", Bridge, err)
	}
	// Without an explicit MTU, the kernel takes the smallest MTU of the ports. A port may still
	// have the MTU from before a change.
	if err := netlink.LinkSetMTU(link, mtu); err != nil {
		return fmt.Errorf("%s: cannot set MTU: %w", Bridge, err)
	}
	if err := ensureAddresses(link, gateways); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("%s: cannot set up: %w", Bridge, err)
	}
	return nil
}

// ensureDummy creates a dummy link if it is missing, sets exactly the given addresses, and sets the
// link up.
func ensureDummy(name string, addresses []netip.Prefix) error {
	link, err := ensureLink(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: name}})
	if err != nil {
		return err
	}
	if err := ensureAddresses(link, addresses); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("%s: cannot set up: %w", name, err)
	}
	return nil
}

// ensureLink returns the link with the name of wanted, and creates it if it is missing.
func ensureLink(wanted netlink.Link) (netlink.Link, error) {
	name := wanted.Attrs().Name
	link, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		if err := netlink.LinkAdd(wanted); err != nil {
			return nil, fmt.Errorf("%s: cannot make: %w", name, err)
		}
		link, err = netlink.LinkByName(name)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: cannot find: %w", name, err)
	}
	return link, nil
}

// bridgeAddresses returns the addresses of the bridge, or nil if there is no bridge.
func bridgeAddresses() ([]netip.Prefix, error) {
	link, err := netlink.LinkByName(Bridge)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: cannot find: %w", Bridge, err)
	}
	have, err := addressesOn(link)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot list addresses: %w", Bridge, err)
	}
	var out []netip.Prefix
	for _, a := range have {
		bits, _ := a.Mask.Size()
		ip, _ := netip.AddrFromSlice(a.IP)
		out = append(out, netip.PrefixFrom(ip.Unmap(), bits))
	}
	return out, nil
}

// addressesOn returns the addresses of a link, or the addresses of all links if link is nil.
func addressesOn(link netlink.Link) ([]netlink.Addr, error) {
	return rtnl.Consistent(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
}

// ensureAddresses sets exactly the given addresses on a link. Link-local addresses stay.
func ensureAddresses(link netlink.Link, want []netip.Prefix) error {
	name := link.Attrs().Name
	have, err := addressesOn(link)
	if err != nil {
		return fmt.Errorf("%s: cannot list addresses: %w", name, err)
	}
	for _, a := range have {
		bits, _ := a.Mask.Size()
		ip, _ := netip.AddrFromSlice(a.IP)
		prefix := netip.PrefixFrom(ip.Unmap(), bits)
		if slices.Contains(want, prefix) || ip.IsLinkLocalUnicast() {
			continue
		}
		if err := netlink.AddrDel(link, &a); err != nil {
			return fmt.Errorf("%s: cannot remove old address %s: %w", name, prefix, err)
		}
	}
	for _, p := range want {
		address, err := netlink.ParseAddr(p.String())
		if err != nil {
			return fmt.Errorf("%s: cannot use address %s: %w", name, p, err)
		}
		if p.Addr().Is6() {
			// Duplicate address detection would delay the cluster DNS by a second. It is not
			// necessary, because the link has no other machine.
			address.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrReplace(link, address); err != nil {
			return fmt.Errorf("%s: cannot set address %s: %w", name, p, err)
		}
	}
	return nil
}

// ensureRoutes adds routes to the link with the given name. The source address of a route is the
// address in senders of the same family.
func ensureRoutes(name string, routes []netip.Prefix, senders []netip.Addr) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("%s: cannot find: %w", name, err)
	}
	for _, r := range routes {
		destination, err := netlink.ParseIPNet(r.Masked().String())
		if err != nil {
			return fmt.Errorf("route %s: cannot use: %w", r, err)
		}
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: destination, Scope: netlink.SCOPE_LINK, Protocol: rtnl.ProtoServices}
		for _, sender := range senders {
			if sender.Is6() == r.Addr().Is6() {
				route.Src = sender.AsSlice()
			}
		}
		if r.Addr().Is6() {
			route.Scope = netlink.SCOPE_UNIVERSE
		}
		if err := putRoute(route); err != nil {
			return fmt.Errorf("route %s to %s: cannot set: %w", r, name, err)
		}
	}
	return nil
}

// filter applies the rules of a plan in one transaction: packets that leave the cluster are
// masqueraded, and packets of pods to a VXLAN tunnel are dropped.
func filter(ctx context.Context, nft knftables.Interface, plan Plan) error {
	tx := nft.NewTransaction()
	tx.Add(&knftables.Table{Comment: knftables.PtrTo("pods of this node leaving the cluster")})
	add := func(name string, kind knftables.BaseChainType, hook knftables.BaseChainHook, at knftables.BaseChainPriority, rules []string) {
		chain := knftables.Chain{Name: name, Type: &kind, Hook: &hook, Priority: &at}
		tx.Add(&chain)
		tx.Flush(&chain)
		for _, r := range rules {
			tx.Add(&knftables.Rule{Chain: name, Rule: r})
		}
	}
	add("postrouting", knftables.NATType, knftables.PostroutingHook, knftables.SNATPriority, plan.Rules)
	add("input", knftables.FilterType, knftables.InputHook, knftables.FilterPriority, plan.Closed)
	add("forward", knftables.FilterType, knftables.ForwardHook, knftables.FilterPriority, plan.Closed)
	if err := nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("nftables table %s: cannot set: %w", table, err)
	}
	return nil
}
