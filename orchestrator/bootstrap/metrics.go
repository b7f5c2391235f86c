package bootstrap

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	registration "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
)

const (
	// MetricsAPI is the name of the registration of the resource metrics API.
	MetricsAPI = "v1beta1.metrics.k8s.io"
	// MetricsService is the Service in kube-system that the registration names.
	// nodespec.MetricsHost is the host name of this Service.
	MetricsService = "orlop-metrics"

	metricsPort = 443
)

// metricsService returns the Service that the registration names, because a registration must name
// a Service. The API server recognizes the name and calls the server on its own machine (package
// metrics). The Service has no endpoints, and no other client can reach the server through it.
func metricsService() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: MetricsService, Namespace: metav1.NamespaceSystem, Labels: map[string]string{LabelOwn: ""}},
		Spec: corev1.ServiceSpec{
			Type:         corev1.ServiceTypeExternalName,
			ExternalName: MetricsService + ".invalid", // RFC 6761, section 6.4
			Ports:        []corev1.ServicePort{{Name: "https", Protocol: corev1.ProtocolTCP, Port: metricsPort, TargetPort: intstr.FromInt32(metricsPort)}},
		},
	}
}

// metricsAPI returns the registration without its CA, which the metrics server itself adds. The
// priorities are the same as in upstream's metrics-server.
func metricsAPI() *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: MetricsAPI},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: "metrics.k8s.io", Version: "v1beta1", GroupPriorityMinimum: 100, VersionPriority: 100,
			Service: &apiregistrationv1.ServiceReference{Namespace: metav1.NamespaceSystem, Name: MetricsService, Port: new(int32(metricsPort))},
		},
	}
}

// IsBuiltinMetrics reports whether a registration of the resource metrics API names our own server.
// If a user has installed another server, the registration names that server and is left as it is.
func IsBuiltinMetrics(r *apiregistrationv1.APIService) bool {
	s := r.Spec.Service
	return s != nil && s.Namespace == metav1.NamespaceSystem && s.Name == MetricsService
}

func ensureAPIService(ctx context.Context, client registration.APIServicesGetter, want *apiregistrationv1.APIService) error {
	return ensureObject(ctx, client.APIServices(), want, func(have *apiregistrationv1.APIService) bool {
		if !IsBuiltinMetrics(have) {
			return false
		}
		spec := *want.Spec.DeepCopy()
		spec.CABundle = have.Spec.CABundle
		return assign(&have.Spec, spec)
	})
}
