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

// connectTimeout bounds a connection attempt to another machine; on this machine it takes no time.
const connectTimeout = 300 * time.Millisecond

// Addresses returns the addresses of the resource metrics API, this machine's own first: on
// loopback in a cluster with one API server, and on every control-plane machine's address in a
// cluster with several.
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

// LocalResolver resolves services as next does, except the resource metrics API, which it resolves
// to the first of the addresses that accepts connections. Each control-plane machine serves this
// API, and an API server that used another machine's would depend on that machine without a
// benefit. While its own is down it does so anyway: all API servers write the availability of the
// API into one object, and would otherwise contradict each other.
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

// firstReachable returns the first address that accepts connections, or else this machine's own.
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
