package metrics

import (
	"fmt"
	"net/url"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver"

	"github.com/orlop-os/orlop/orchestrator/bootstrap"
)

// Nearby finds services as next does, but the resource metrics API on this machine: each control-plane machine serves it itself, and an
// API server that asked another machine's would depend on that one for no gain.
func Nearby(next aggregator.ServiceResolver) aggregator.ServiceResolver { return nearby{next} }

type nearby struct{ aggregator.ServiceResolver }

// ResolveEndpoint implements aggregator.ServiceResolver.
func (n nearby) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	if namespace == metav1.NamespaceSystem && name == bootstrap.MetricsService {
		return &url.URL{Scheme: "https", Host: fmt.Sprintf("%s:%d", address, Port)}, nil
	}
	return n.ServiceResolver.ResolveEndpoint(namespace, name, port)
}
