package metrics

import (
	"net"
	"net/netip"
	"net/url"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver"

	"github.com/orlop-os/orlop/orchestrator/bootstrap"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// connectTimeout is the deadline of a connection attempt to the component of a machine.
const connectTimeout = 300 * time.Millisecond

// Addresses returns the addresses of the components that serve the resource metrics API, the
// component of this machine first. In a cluster with one control-plane machine it is a loopback
// address. In a cluster with several they are the addresses of these machines.
func Addresses(spec nodespec.Spec) []netip.AddrPort {
	if len(spec.ControlPlanes) == 0 {
		return []netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), paths.PortMetrics)}
	}
	all := []netip.AddrPort{netip.AddrPortFrom(spec.OwnAddress(), paths.PortMetrics)}
	for _, a := range spec.OtherControlPlanes() {
		all = append(all, netip.AddrPortFrom(a, paths.PortMetrics))
	}
	return all
}

// LocalResolver returns a resolver that resolves the Service of the resource metrics API to the
// first address that accepts connections. It resolves all other Services by next.
//
// The address of the own machine is first, so an API server does not depend on another machine.
// While the own component is down, the resolver uses another machine. Without this, the API server
// of this machine would report the API as unavailable, and the other API servers as available, in
// the same APIService object.
func LocalResolver(next aggregator.ServiceResolver, addresses []netip.AddrPort) aggregator.ServiceResolver {
	return localResolver{next, addresses}
}

type localResolver struct {
	aggregator.ServiceResolver
	addresses []netip.AddrPort
}

// ResolveEndpoint implements aggregator.ServiceResolver.
func (n localResolver) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	if namespace == metav1.NamespaceSystem && name == bootstrap.MetricsService {
		return &url.URL{Scheme: "https", Host: n.firstReachable().String()}, nil
	}
	return n.ServiceResolver.ResolveEndpoint(namespace, name, port)
}

// firstReachable returns the first address that accepts connections. If no address does, it returns
// the address of this machine.
func (n localResolver) firstReachable() netip.AddrPort {
	if len(n.addresses) > 1 {
		for _, a := range n.addresses {
			if c, err := net.DialTimeout("tcp", a.String(), connectTimeout); err == nil {
				c.Close()
				return a
			}
		}
	}
	return n.addresses[0]
}
