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

// connecting is how long another machine may take to be connected with; on this one it takes no
// time.
const connecting = 300 * time.Millisecond

// Addresses are where the resource metrics API answers, this machine's own first: on loopback where
// it has one API server to answer, and on every control-plane machine's address where there are
// several.
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

// LocalResolver finds services as next does, but the resource metrics API at the first of the addresses
// that takes connections. Each control-plane machine serves it, and an API server that asked
// another machine's would depend on that one for no gain. While its own is away it does all the
// same: all API servers write into one object whether the API is available, and would go on
// contradicting each other.
func LocalResolver(next aggregator.ServiceResolver, addresses []netip.AddrPort) aggregator.ServiceResolver {
	return nearby{next, addresses}
}

type nearby struct {
	aggregator.ServiceResolver
	addresses []netip.AddrPort
}

// ResolveEndpoint implements aggregator.ServiceResolver.
func (n nearby) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	if namespace == metav1.NamespaceSystem && name == bootstrap.MetricsService {
		return &url.URL{Scheme: "https", Host: n.answering().String()}, nil
	}
	return n.ServiceResolver.ResolveEndpoint(namespace, name, port)
}

// answering is the first address that takes connections; this machine's own, if none does.
func (n nearby) answering() netip.AddrPort {
	if len(n.addresses) > 1 {
		for _, a := range n.addresses {
			if c, err := net.DialTimeout("tcp", a.String(), connecting); err == nil {
				c.Close()
				return a
			}
		}
	}
	return n.addresses[0]
}
