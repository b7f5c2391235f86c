package network

import (
	"fmt"
	"net/netip"
	"strconv"

	"github.com/jsimonetti/rtnetlink/v2"
	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/kernel/rtnl"
)

// KernelRoute is a route in the kernel, of any component.
type KernelRoute struct {
	To netip.Prefix `json:"to"`
	// the next hop; the zero Addr (empty in JSON) if the destination is on the link, or if there
	// are several next hops
	Via netip.Addr `json:"via"`
	// empty for a route without a link, or with several links
	Link   string `json:"link,omitempty"`
	Metric uint32 `json:"metric,omitempty"` // the lower metric wins
	// "machine", "pods" (the network between the nodes), "services", "kernel", "static" or the
	// number of rtm_protocol
	Origin string `json:"origin"`
	// "blackhole", "unreachable", "prohibit", "multicast" or the number of rtm_type; empty: unicast
	Kind  string `json:"kind,omitempty"`
	Table uint32 `json:"table,omitempty"` // 0: the main table, 254
}

// maxRoutes is the highest number of routes that KernelRoutes returns, because a message of the API
// has at most 4 MiB.
const maxRoutes = 10_000

// KernelRoutes returns the routes of all tables, IPv4 before IPv6. It omits the local table, which
// contains the machine's own addresses. It fails if there are more than maxRoutes routes.
func KernelRoutes() ([]KernelRoute, error) {
	conn, err := rtnetlink.Dial(nil)
	if err != nil {
		return nil, fmt.Errorf("network: cannot open rtnetlink: %w", err)
	}
	defer conn.Close() // the error is ignored, because no request is pending
	names, err := listNames(conn)
	if err != nil {
		return nil, err
	}
	all, err := dumpRoutes(conn)
	if err != nil {
		return nil, err
	}
	if len(all) > maxRoutes {
		return nil, fmt.Errorf("routes: the kernel has %d, and at most %d can be shown", len(all), maxRoutes)
	}
	out := []KernelRoute{}
	for _, r := range all {
		table := tableNumber(r)
		// a cloned route is an entry of the route cache of the kernel
		if table == unix.RT_TABLE_LOCAL || r.Flags&unix.RTM_F_CLONED != 0 {
			continue
		}
		if table == unix.RT_TABLE_MAIN {
			table = 0
		}
		out = append(out, KernelRoute{
			To: destination(r), Via: toAddr(r.Attributes.Gateway), Link: names[int(r.Attributes.OutIface)], Metric: r.Attributes.Priority,
			Origin: origin(r.Protocol), Kind: kind(r.Type), Table: table,
		})
	}
	return out, nil
}

func origin(protocol uint8) string {
	switch protocol {
	case Protocol:
		return "machine"
	case rtnl.ProtoPods:
		return "pods"
	case rtnl.ProtoServices:
		return "services"
	case unix.RTPROT_KERNEL, unix.RTPROT_RA:
		return "kernel"
	case unix.RTPROT_BOOT, unix.RTPROT_STATIC:
		return "static"
	}
	return strconv.Itoa(int(protocol))
}

func kind(of uint8) string {
	switch of {
	case unix.RTN_UNICAST:
		return ""
	case unix.RTN_BLACKHOLE:
		return "blackhole"
	case unix.RTN_UNREACHABLE:
		return "unreachable"
	case unix.RTN_PROHIBIT:
		return "prohibit"
	case unix.RTN_MULTICAST:
		return "multicast"
	}
	return strconv.Itoa(int(of))
}
