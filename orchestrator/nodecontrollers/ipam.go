package nodecontrollers

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"k8s.io/kubernetes/pkg/controller/nodeipam"
	"k8s.io/kubernetes/pkg/controller/nodeipam/ipam"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// IPAM is the name of the component that assigns a part of each pod range to every Node. A Node
// without such a part does not become Ready.
const IPAM = "node-ipam"

// IPAMComponent describes the component without its Run function.
func IPAMComponent(spec nodespec.Spec, dirs dirs.Dirs) component.Component {
	return describe(IPAM, spec, dirs)
}

// RunIPAM assigns pod ranges to Nodes until ctx is done.
func RunIPAM(ctx context.Context, env component.Env) error {
	who, err := begin(ctx, env, IPAM)
	if who == nil {
		return err
	}
	client := who.of(ctx, "node-controller")
	if client == nil {
		return nil
	}
	nodes, err := env.Nodes.Typed()
	if err != nil {
		return err
	}
	pods, services := networks(env.Spec.Network.PodCIDRs), networks(env.Spec.Network.ServiceCIDRs)
	var second *net.IPNet // the service range of the other address family, if there is one
	if len(services) > 1 {
		second = services[1]
	}
	controller, err := nodeipam.NewNodeIpamController(ctx, nodes, nil, client, pods, services[0], second,
		masks(env.Spec.Network.PodCIDRs), ipam.RangeAllocatorType)
	if err != nil {
		return fmt.Errorf("cannot make controller: %w", err)
	}
	env.Nodes.Start(ctx.Done())
	env.Announce(IPAM, true, "")
	controller.Run(ctx)
	return nil
}

// networks converts prefixes to the type that upstream's controller takes.
func networks(ranges []netip.Prefix) []*net.IPNet {
	var out []*net.IPNet
	for _, r := range ranges {
		out = append(out, &net.IPNet{IP: r.Masked().Addr().AsSlice(), Mask: net.CIDRMask(r.Bits(), r.Addr().BitLen())})
	}
	return out
}

// masks returns, for each pod range, the prefix length of the part that a Node gets: 256 addresses
// with IPv4, 2⁶⁴ with IPv6. A smaller range goes to a single Node as a whole.
func masks(pods []netip.Prefix) []int {
	var out []int
	for _, p := range pods {
		share := 24
		if p.Addr().Is6() {
			share = 64
		}
		out = append(out, max(share, p.Bits()))
	}
	return out
}
