package podnetwork

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/orlop-os/orlop/orchestrator/component"
)

// If an external component connects the node's pods (Cluster.spec.external), the machine has no
// bridge with an address for the cluster DNS, and no bridge for the routes to Services.

// ownLink is the link with the cluster DNS's addresses in that case: a dummy, which carries no
// packets.
const ownLink = "orlop-dns"

// The addresses of the cluster DNS on every node. A pod's packets to the cluster DNS address are
// rewritten to them on the pod's own node, and no packet with them leaves it. The API rejects
// link-local and loopback addresses as endpoints. IPv4: the dummy address (RFC 7600 and IANA's
// registry of special addresses); IPv6: of the range that routers discard (RFC 6666).
var (
	ownDNS4 = netip.MustParseAddr("192.0.0.8")
	ownDNS6 = netip.MustParseAddr("100::8")
)

// ownDNS returns the addresses of the cluster DNS, one of each family of the pods.
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

// configureExternal configures the parts that neither the external network nor the service proxy
// provides: addresses for the cluster DNS, and routes by which processes of the machine reach
// Services without a default route. The source address is the machine's own.
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

// publishLoop publishes the cluster DNS's endpoint of this node, or withdraws it, after each change
// of its Node, until ctx is done.
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
		if detail != told && ctx.Err() == nil { // a Node is updated every few seconds
			announce(Name, true, detail)
			told = detail
		}
	}
}
