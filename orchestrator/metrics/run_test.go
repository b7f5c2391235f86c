package metrics

import (
	"context"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	registration "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/orlop-os/orlop/orchestrator/bootstrap"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// registered is a fake client with a single APIService. It counts the writes.
type registered struct {
	registration.APIServiceInterface
	object *apiregistrationv1.APIService
	writes int
}

func (r *registered) Get(context.Context, string, metav1.GetOptions) (*apiregistrationv1.APIService, error) {
	return r.object.DeepCopy(), nil
}

func (r *registered) Update(_ context.Context, o *apiregistrationv1.APIService, _ metav1.UpdateOptions) (*apiregistrationv1.APIService, error) {
	r.object = o
	r.writes++
	return o, nil
}

func TestReconcile(t *testing.T) {
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	condition := func(status apiregistrationv1.ConditionStatus, reason, message string) []apiregistrationv1.APIServiceCondition {
		return []apiregistrationv1.APIServiceCondition{{Type: apiregistrationv1.Available, Status: status, Reason: reason, Message: message}}
	}
	good := condition(apiregistrationv1.ConditionTrue, "Passed", "")
	refused := condition(apiregistrationv1.ConditionFalse, "FailedDiscoveryCheck", "refused")
	none := condition(apiregistrationv1.ConditionFalse, "MissingEndpoints", "")
	for _, c := range []struct {
		what, service, bundle string
		served                string
		conditions            []apiregistrationv1.APIServiceCondition
		ready                 bool
		detail                string
		writes                int
	}{
		{"available with the current CA", bootstrap.MetricsService, "new", "before", good, true, "", 0},
		{"without a CA", bootstrap.MetricsService, "", "", nil, false, "has not checked it yet", 1},
		{"after the CA was replaced", bootstrap.MetricsService, "old", "now", good, true, "", 1},
		{"not available after a start of the component", bootstrap.MetricsService, "new", "before", refused, false,
			"APIService v1beta1.metrics.k8s.io: FailedDiscoveryCheck: refused", 1},
		{"not available, and already checked again", bootstrap.MetricsService, "new", "now", refused, false,
			"APIService v1beta1.metrics.k8s.io: FailedDiscoveryCheck: refused", 0},
		{"APIService of another server", "metrics-server", "other", "", none, true, "another server", 0},
	} {
		api := &registered{object: &apiregistrationv1.APIService{
			ObjectMeta: metav1.ObjectMeta{Name: bootstrap.MetricsAPI, Annotations: map[string]string{served: c.served}},
			Spec: apiregistrationv1.APIServiceSpec{
				Service: &apiregistrationv1.ServiceReference{Namespace: "kube-system", Name: c.service}, CABundle: []byte(c.bundle),
			},
			Status: apiregistrationv1.APIServiceStatus{Conditions: c.conditions},
		}}
		got := (&registrar{ca: ca, servedSince: "now", api: api}).reconcile(context.Background())
		if got.ready != c.ready || !strings.Contains(got.detail, c.detail) || api.writes != c.writes {
			t.Errorf("%s: %+v, %d writes, want %d", c.what, got, api.writes, c.writes)
		}
	}
}

// services is the resolver that LocalResolver uses for all other Services.
type services struct{}

func (services) ResolveEndpoint(namespace, name string, _ int32) (*url.URL, error) {
	return &url.URL{Scheme: "https", Host: name + "." + namespace}, nil
}

func TestLocalResolver(t *testing.T) {
	single := Addresses(nodespec.Spec{Node: nodespec.Node{IPs: []netip.Addr{netip.MustParseAddr("192.0.2.10")}}})
	for where, want := range map[[2]string]string{
		{"kube-system", bootstrap.MetricsService}: "https://127.0.0.1:10261",
		{"default", bootstrap.MetricsService}:     "https://orlop-metrics.default",
		{"kube-system", "metrics-server"}:         "https://metrics-server.kube-system",
	} {
		got, err := LocalResolver(services{}, single).ResolveEndpoint(where[0], where[1], 443)
		if err != nil || got.String() != want {
			t.Errorf("%v: %v, %v; want %s", where, got, err, want)
		}
	}
	// In a cluster with several control-plane machines, the resolver returns the address of another
	// machine while the component of its own machine is down.
	address := func(last byte) netip.Addr { return netip.AddrFrom4([4]byte{127, 78, 0, last}) }
	several := Addresses(nodespec.Spec{Node: nodespec.Node{IPs: []netip.Addr{address(2)}}, ControlPlanes: []netip.Addr{address(1), address(2), address(3)}})
	asked := func() string {
		t.Helper()
		got, err := LocalResolver(services{}, several).ResolveEndpoint("kube-system", bootstrap.MetricsService, 443)
		if err != nil {
			t.Fatal(err)
		}
		return got.Host
	}
	expect := func(want byte) {
		t.Helper()
		if got := asked(); got != netip.AddrPortFrom(address(want), paths.PortMetrics).String() {
			t.Errorf("the resolver returns %s, want the address that ends in %d", got, want)
		}
	}
	expect(2) // no address accepts connections, so the own address is used
	for _, last := range []byte{3, 1, 2} {
		l, err := net.Listen("tcp", netip.AddrPortFrom(address(last), paths.PortMetrics).String())
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		expect(last) // each new listener has precedence over those before
	}
	// The aggregator of the API server expects this name in the certificate.
	if name := bootstrap.MetricsService + "." + metav1.NamespaceSystem + ".svc"; nodespec.MetricsHost != name {
		t.Errorf("the certificate is for %s, but the aggregator expects %s", nodespec.MetricsHost, name)
	}
}
