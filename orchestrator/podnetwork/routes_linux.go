package podnetwork

import (
	"errors"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/kernel/rtnl"
)

// ownMetric is the metric of this package's IPv6 routes. The kernel prefers them to routes with the
// default metric 1024 (IP6_RT_PRIO_USER). With the default metric, the kernel would merge a route
// of this package and another program's route to the same network, if both have a gateway. IPv4 has
// no metric below the default, which is 0.
const ownMetric = 512

// putRoute adds a route of this package, and removes all other routes of the same protocol to the
// same network.
//
// putRoute does not use the kernel's replace operation, because another program may have a route to
// the network with the same metric. The replace operation replaces the first route that it finds
// (fib_table_insert in net/ipv4/fib_trie.c), which could be that foreign route. If the first route
// is foreign, and the wanted route already exists after it, the operation fails with EEXIST. So
// putRoute adds the new route before the existing routes, as `ip route prepend` does, and then
// deletes its old routes by all their properties.
func putRoute(route *netlink.Route) error {
	if route.Dst.IP.To4() == nil && route.Priority == 0 {
		route.Priority = ownMetric
	}
	// Most routes are the first to their network, so putRoute first tries to add the route without
	// reading the others.
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
		// RouteAddEcmp adds the route without NLM_F_EXCL, NLM_F_REPLACE and NLM_F_APPEND, so the
		// kernel puts it before the existing routes.
		err = errors.Join(err, netlink.RouteAddEcmp(route))
	}
	return errors.Join(err, deleteRoutes(old))
}

// oldFirst reports whether the old routes must be deleted before the new route is added. In IPv6
// they always must: the kernel takes a new route with the same next hop for the old route, and
// merges a new route with another next hop into the old route. IPv4 deletes the first route that
// matches the given properties, so the deletion of a route without a source address would also
// match the new route.
func oldFirst(route netlink.Route, old []netlink.Route) bool {
	return route.Dst.IP.To4() == nil || route.Src != nil && slices.ContainsFunc(old, func(r netlink.Route) bool { return r.Src == nil })
}

// routesTo returns the routes with the protocol and the destination of route.
func routesTo(route *netlink.Route) ([]netlink.Route, error) {
	family := unix.AF_INET
	if route.Dst.IP.To4() == nil {
		family = unix.AF_INET6
	}
	return rtnl.Consistent(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(family, &netlink.Route{Dst: route.Dst, Protocol: route.Protocol}, netlink.RT_FILTER_DST|netlink.RT_FILTER_PROTOCOL)
	})
}

// sameRoute reports whether a route of the kernel equals the wanted route. It does not compare the
// links of unreachable routes, which the kernel chooses.
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

// deleteRoutes deletes routes in the form in which the kernel has listed them. A route that no
// longer exists is not an error.
func deleteRoutes(all []netlink.Route) error {
	var errs []error
	for _, r := range all {
		r.Flags = 0 // the flags describe the state of the link, for example a missing carrier
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
