package podnetwork

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/orlop-os/orlop/orchestrator/component"
)

// Where something else connects the node's pods (Cluster.spec.external), there is no bridge whose
// address the cluster DNS could have, and nothing to route Services to.

// ownLink is the link that has the cluster DNS's addresses then: a dummy, which carries nothing.
const ownLink = "orlop-dns"

// The addresses of the cluster DNS on every node. What a pod sends to the cluster DNS address is
// rewritten to them on the pod's own node, and no packet with them leaves it. The API refuses
// link-local and loopback addresses as endpoints. IPv4: the dummy address (RFC 7600 and IANA's
// registry of special addresses); IPv6: of the range that routers discard (RFC 6666).
var (
	ownDNS4 = netip.MustParseAddr("192.0.0.8")
	ownDNS6 = netip.MustParseAddr("100::8")
)

// ownDNS are the addresses of the cluster DNS, one of each family that pods have.
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

// own gives the machine what neither the other network nor the service proxy brings: addresses for
// the cluster DNS, and routes by which programs of the machine reach Services without a default
// route. The sender is the machine's own address.
func (a *Agent) own() error {
	want := ownDNS(a.spec.PodCIDRs)
	if err := ensureDummy(ownLink, want); err != nil {
		return err
	}
	if err := ensureRoutes(ownLink, a.spec.ServiceCIDRs, a.spec.NodeIPs); err != nil {
		return err
	}
	a.addrs = addressesOf(want)
	close(a.bridged)
	return nil
}

// keepPublished publishes the cluster DNS's endpoint of this node, or takes it back, as often as
// there is a new state of its Node, until ctx is done.
func (a *Agent) keepPublished(ctx context.Context, api kubernetes.Interface, announce component.Announce) error {
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
		detail := component.ExternalDetail("something else connects pods")
		if err := a.publish(ctx, api, last); err != nil {
			detail = fmt.Sprintf("%s; cluster DNS is not published: %v", detail, err)
			timer.Reset(again)
		}
		if detail != told && ctx.Err() == nil { // a Node speaks up every few seconds
			announce(Name, true, detail)
			told = detail
		}
	}
}
