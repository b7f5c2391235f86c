package podnetwork

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/orlop-os/orlop/orchestrator/component"
)

// This file is for nodes on which an external component connects the pods (Cluster.spec.external).
// There, the machine has no bridge. So the cluster DNS needs other addresses, and the routes to
// Services need another link.

// ownLink is the link with the addresses of the cluster DNS in this case. It is a dummy link, which
// carries no packets.
const ownLink = "orlop-dns"

// The addresses of the cluster DNS on every node. The service proxy rewrites a pod's packets to the
// cluster DNS to these addresses on the pod's own node, so no packet with them leaves the node. The
// API rejects link-local and loopback addresses as endpoints. The IPv4 address is the dummy address
// (RFC 7600 and IANA's registry of special addresses). The IPv6 address is from the range that
// routers discard (RFC 6666).
var (
	ownDNS4 = netip.MustParseAddr("192.0.0.8")
	ownDNS6 = netip.MustParseAddr("100::8")
)

// ownDNS returns the addresses of the cluster DNS: one for each family of the pod ranges.
func ownDNS(podCIDRs []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, r := range podCIDRs {
		a := ownDNS4
		if r.Addr().Is6() {
			a = ownDNS6
		}
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	return out
}

// configureExternal adds the parts of the network that the external component and the service proxy
// do not provide: addresses for the cluster DNS, and routes by which processes of a machine without
// a default route reach Services. The source address of these routes is the machine's own.
func (a *Agent) configureExternal() error {
	want := ownDNS(a.spec.Network.PodCIDRs)
	if err := ensureDummy(ownLink, want); err != nil {
		return err
	}
	if err := ensureRoutes(ownLink, a.spec.Network.ServiceCIDRs, a.spec.Node.IPs); err != nil {
		return err
	}
	a.addrs = addressesOf(want)
	close(a.bridged)
	return nil
}

// publishLoop publishes the node's endpoint of the cluster DNS, or deletes it if an external
// component provides the DNS. It does so after each change of the Node until ctx is done.
func (a *Agent) publishLoop(ctx context.Context, api kubernetes.Interface, announce component.Announce) error {
	timer := newTimer()
	defer timer.Stop()
	var last *corev1.Node
	for told := ""; ; {
		select {
		case last = <-a.nodes:
		case <-timer.C:
		case <-ctx.Done():
			return nil
		}
		detail := component.ExternalDetail("an external component connects pods")
		if err := a.publish(ctx, api, last); err != nil {
			detail = fmt.Sprintf("%s; cluster DNS is not published: %v", detail, err)
			timer.Reset(publishRetry)
		}
		// the Node changes every few seconds, the status text rarely
		if detail != told && ctx.Err() == nil {
			announce(Name, true, detail)
			told = detail
		}
	}
}
