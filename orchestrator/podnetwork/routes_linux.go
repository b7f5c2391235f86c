package podnetwork

import (
	"errors"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/rtnl"
)

// ownMetric is the metric of our routes in IPv6: before what others make, which is 1024 unless
// they say another (IP6_RT_PRIO_USER). At the same metric the kernel would make one route of two
// with gateways. IPv4 has no metric before the usual one, which is 0.
const ownMetric = 512

// putRoute makes a route of ours, and takes away each other one of the same protocol to the same
// network, if there is one at its metric.
//
// Somebody else may have a route to that network, with the same metric. The kernel then replaces
// whichever it finds first (fib_table_insert in net/ipv4/fib_trie.c): theirs, or none because
// ours is there already (EEXIST). So nothing is replaced: the new one is made in front of those
// that are there, as `ip route prepend` does, and the old ones of ours go by all that they are.
func putRoute(route *netlink.Route) error {
	if route.Dst.IP.To4() == nil && route.Priority == 0 {
		route.Priority = ownMetric
	}
	// Most are the first to their network, and need no look at all that there are.
	if err := netlink.RouteAdd(route); !errors.Is(err, unix.EEXIST) {
		return err
	}
	have, err := routesTo(route)
	if err != nil {
		return err
	}
	there := false
	var old []netlink.Route
	for _, r := range have {
		if !there && sameRoute(*route, r) {
			there = true
			continue
		}
		old = append(old, r)
	}
	if !there && oldFirst(*route, old) {
		err, old = deleteRoutes(old), nil
	}
	if !there {
		// without NLM_F_EXCL, NLM_F_REPLACE and NLM_F_APPEND
		err = errors.Join(err, netlink.RouteAddEcmp(route))
	}
	return errors.Join(err, deleteRoutes(old))
}

// oldFirst says that the old routes have to go before the new one comes. IPv6 knows a route by
// its way alone, and takes two ways for one route. IPv4 deletes the first that has what is named,
// so one without a sender stands for the new one too.
func oldFirst(route netlink.Route, old []netlink.Route) bool {
	return route.Dst.IP.To4() == nil || route.Src != nil && slices.ContainsFunc(old, func(r netlink.Route) bool { return r.Src == nil })
}

// routesTo are the routes of one protocol to one network.
func routesTo(route *netlink.Route) ([]netlink.Route, error) {
	family := unix.AF_INET
	if route.Dst.IP.To4() == nil {
		family = unix.AF_INET6
	}
	return rtnl.Consistent(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(family, &netlink.Route{Dst: route.Dst, Protocol: route.Protocol}, netlink.RT_FILTER_DST|netlink.RT_FILTER_PROTOCOL)
	})
}

// sameRoute says that a route of the kernel is the wanted one. What leads nowhere has a link of
// the kernel's choice.
func sameRoute(want, have netlink.Route) bool {
	kind := func(r netlink.Route) int {
		if r.Type == 0 {
			return unix.RTN_UNICAST
		}
		return r.Type
	}
	return kind(want) == kind(have) && want.Priority == have.Priority && want.Gw.Equal(have.Gw) && want.Src.Equal(have.Src) &&
		(kind(want) != unix.RTN_UNICAST || want.LinkIndex == 0 || want.LinkIndex == have.LinkIndex)
}

// deleteRoutes deletes routes as the kernel has listed them. One that is gone meanwhile is no
// error.
func deleteRoutes(all []netlink.Route) error {
	var errs []error
	for _, r := range all {
		r.Flags = 0 // of its link, such as that it has no carrier
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
