package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	registration "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/orlop-os/orlop/orchestrator/bootstrap"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
)

// The node of the test that has metrics, the namespace of its pods, and the path of the API.
const (
	measuredNode      = "measured"
	measuredNamespace = "measured"
	metricsPath       = "/apis/metrics.k8s.io/v1beta1/"
)

// fakeKubelet is a kubelet that only serves metrics and renews the Lease of its node. Its metrics
// say that the node uses half a core, and each pod a quarter of a core.
type fakeKubelet struct {
	client kubernetes.Interface
	since  time.Time // the start of the node and its pods
	mu     sync.Mutex
	pods   []string // of measuredNamespace
}

// startKubelet starts a fakeKubelet on the machine's address, and creates its Node.
func startKubelet(ctx context.Context, t *testing.T, m machine, admin kubernetes.Interface) *fakeKubelet {
	t.Helper()
	leaf, err := m.ca.Issue(pki.Spec{CN: "system:node:" + measuredNode, Usage: pki.Server, DNS: []string{measuredNode}, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(leaf.CertPEM(), leaf.KeyPEM())
	if err != nil {
		t.Fatal(err)
	}
	callers := x509.NewCertPool()
	callers.AddCert(m.ca.Cert)
	address := testSpec().Node.IPs[0].String()
	listener, err := tls.Listen("tcp", net.JoinHostPort(address, "0"),
		&tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: callers, ClientAuth: tls.RequireAndVerifyClientCert})
	if err != nil {
		t.Fatal(err)
	}
	k := &fakeKubelet{client: admin, since: time.Now().Add(-time.Hour)}
	server := &http.Server{Handler: k}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })

	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: measuredNode}}
	if _, err := admin.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(ctx, lease, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: measuredNode}}
	if _, err := admin.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	nodes := admin.CoreV1().Nodes()
	modify(ctx, t, nodes.Get, nodes.UpdateStatus, measuredNode, func(node *corev1.Node) {
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
		node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(listener.Addr().(*net.TCPAddr).Port)
		node.Status.Conditions = []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		}}
	})
	return k
}

// ServeHTTP serves metrics as a kubelet does. It also renews the Lease of the node.
func (k *fakeKubelet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/metrics/resource" || r.TLS.PeerCertificates[0].Subject.CommonName != nodespec.MetricsUser {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	now := time.Now()
	age := now.Sub(k.since).Seconds()
	fmt.Fprintf(w, "node_cpu_usage_seconds_total %f %d\nnode_memory_working_set_bytes 1073741824 %d\n", age/2, now.UnixMilli(), now.UnixMilli())
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range k.pods {
		labels := fmt.Sprintf(`{container="c",namespace=%q,pod=%q}`, measuredNamespace, name)
		fmt.Fprintf(w, "container_cpu_usage_seconds_total%s %f %d\ncontainer_memory_working_set_bytes%s 8388608 %d\n",
			labels, age/4, now.UnixMilli(), labels, now.UnixMilli())
	}
	leases := k.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	if lease, err := leases.Get(r.Context(), measuredNode, metav1.GetOptions{}); err == nil {
		lease.Spec.RenewTime = &metav1.MicroTime{Time: now}
		leases.Update(r.Context(), lease, metav1.UpdateOptions{}) // the next call tries again
	}
}

// scaled creates a ReplicaSet with one pod on the node, and a HorizontalPodAutoscaler of at most
// three pods. The pod uses more than the target of the autoscaler.
func (k *fakeKubelet) scaled(ctx context.Context, t *testing.T) {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: measuredNamespace}}
	if _, err := k.client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitAccount(ctx, t, k.client, measuredNamespace)
	labels := map[string]string{"app": "busy"}
	template := plainPod("").Spec
	template.NodeName, template.NodeSelector = measuredNode, nil
	template.Containers[0].Name = "c"
	template.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}
	set := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "busy"},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: template},
		},
	}
	if _, err := k.client.AppsV1().ReplicaSets(measuredNamespace).Create(ctx, set, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	target := func(name corev1.ResourceName, target autoscalingv2.MetricTarget) autoscalingv2.MetricSpec {
		return autoscalingv2.MetricSpec{
			Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{Name: name, Target: target},
		}
	}
	most := resource.MustParse("4Mi")
	scaler := &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "busy"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "busy"}, MaxReplicas: 3,
			Metrics: []autoscalingv2.MetricSpec{
				target(corev1.ResourceCPU, autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: new(int32(50))}),
				target(corev1.ResourceMemory, autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: &most}),
			},
		},
	}
	if _, err := k.client.AutoscalingV2().HorizontalPodAutoscalers(measuredNamespace).Create(ctx, scaler, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		list, err := k.client.CoreV1().Pods(measuredNamespace).List(ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 {
			return false, nil
		}
		pod, long := list.Items[0], metav1.NewTime(k.since)
		pod.Status.Phase, pod.Status.StartTime = corev1.PodRunning, &long
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: long}}
		if _, err := k.client.CoreV1().Pods(measuredNamespace).UpdateStatus(ctx, &pod, metav1.UpdateOptions{}); err != nil {
			return false, nil
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		k.pods = append(k.pods, pod.Name)
		return true, nil
	})
	if err != nil {
		t.Fatalf("the ReplicaSet has no pod: %v", err)
	}
}

// resourceMetrics checks that authorized users can read the metrics of nodes and pods, that the
// autoscaler uses these metrics, and that a client that bypasses the API server cannot read them.
func resourceMetrics(ctx context.Context, t *testing.T, m machine, admin kubernetes.Interface, k *fakeKubelet) {
	rest := admin.Discovery().RESTClient()
	registrations := registration.NewForConfigOrDie(m.config(t, "admin", "orlop:cluster-admins")).APIServices()
	api, err := registrations.Get(ctx, bootstrap.MetricsAPI, metav1.GetOptions{})
	if err != nil || !slices.ContainsFunc(api.Status.Conditions, func(c apiregistrationv1.APIServiceCondition) bool {
		return c.Type == apiregistrationv1.Available && c.Status == apiregistrationv1.ConditionTrue
	}) {
		t.Errorf("the APIService of the metrics is not available: %+v, %v", api, err)
	}
	var node v1beta1.NodeMetrics
	read(ctx, t, admin, "nodes/"+measuredNode, &node)
	if cpu := node.Usage.Cpu().MilliValue(); cpu < 490 || cpu > 510 || node.Usage.Memory().String() != "1Gi" || node.Window.Duration < 10*time.Second {
		t.Errorf("metrics of the node: %+v", node)
	}
	var pods v1beta1.PodMetricsList
	read(ctx, t, admin, "namespaces/"+measuredNamespace+"/pods", &pods)
	if len(pods.Items) != 1 || len(pods.Items[0].Containers) != 1 {
		t.Fatalf("metrics of the pods: %+v, want one pod with one container", pods)
	}
	usage := pods.Items[0].Containers[0].Usage
	if cpu := usage.Cpu().MilliValue(); cpu < 240 || cpu > 260 || usage.Memory().String() != "8Mi" {
		t.Errorf("metrics of the pods: %+v", pods)
	}
	text, err := rest.Get().AbsPath(metricsPath+"nodes").SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(ctx)
	var table metav1.Table
	if err != nil || json.Unmarshal(text, &table) != nil || len(table.Rows) != 1 || len(table.ColumnDefinitions) != 4 {
		t.Errorf("the metrics of the nodes as a table: %s, %v", text, err)
	}
	t.Run("autoscaler", func(t *testing.T) { k.grows(ctx, t) })
	t.Run("readers", func(t *testing.T) { readers(ctx, t, m, admin) })
	t.Run("without the API server", func(t *testing.T) { pastTheServer(ctx, t, m) })
	t.Run("least rights", func(t *testing.T) { metricsRights(ctx, t, admin) })
	err = wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
		paths, err := admin.Discovery().OpenAPIV3().Paths()
		_, there := paths["apis/metrics.k8s.io/v1beta1"]
		return err == nil && there, nil
	})
	if err != nil {
		t.Errorf("OpenAPI v3 has no document for metrics.k8s.io: %v", err)
	}
}

// read gets a path of the metrics API, and decodes the result into its last parameter. It waits
// until the result is an object, or a list that is not empty, for a minute at most.
func read(ctx context.Context, t *testing.T, client kubernetes.Interface, path string, into any) {
	t.Helper()
	var text []byte
	var last error
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		text, last = client.Discovery().RESTClient().Get().AbsPath(metricsPath + path).DoRaw(ctx)
		return last == nil && !strings.Contains(string(text), `"items":[]`), nil
	})
	if err != nil {
		t.Fatalf("%s has no metrics after a minute: %s, %v", path, text, last)
	}
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatalf("cannot decode %s: %s, %v", path, text, err)
	}
}

// grows checks that the autoscaler gets the metrics of both resources, processor and memory, and
// that it scales the ReplicaSet to the maximum of three pods.
func (k *fakeKubelet) grows(ctx context.Context, t *testing.T) {
	var last *autoscalingv2.HorizontalPodAutoscaler
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		var err error
		if last, err = k.client.AutoscalingV2().HorizontalPodAutoscalers(measuredNamespace).Get(ctx, "busy", metav1.GetOptions{}); err != nil {
			return false, nil
		}
		set, err := k.client.AppsV1().ReplicaSets(measuredNamespace).Get(ctx, "busy", metav1.GetOptions{})
		return err == nil && *set.Spec.Replicas == 3 && len(last.Status.CurrentMetrics) == 2, nil
	})
	if err != nil {
		t.Errorf("the autoscaler has not scaled to three pods with two metrics: %v: %+v", err, last)
	}
}

// readers checks that a user with the right to read the pods of a namespace may also read the
// metrics of these pods, but not those of other namespaces. A user without rights may read no
// metrics.
func readers(ctx context.Context, t *testing.T, m machine, admin kubernetes.Interface) {
	nobody := m.client(t, "nobody")
	for _, path := range []string{"nodes", "nodes/" + measuredNode, "pods"} {
		if err := nobody.Discovery().RESTClient().Get().AbsPath(metricsPath + path).Do(ctx).Error(); !apierrors.IsForbidden(err) {
			t.Errorf("%s as a user without rights: %v, want 403", path, err)
		}
	}
	anonymous := m.config(t, "nobody")
	anonymous.CertData, anonymous.KeyData = nil, nil
	stranger := kubernetes.NewForConfigOrDie(anonymous).Discovery().RESTClient()
	if err := stranger.Get().AbsPath(metricsPath + "nodes").Do(ctx).Error(); !apierrors.IsUnauthorized(err) {
		t.Errorf("without credentials: %v, want 401", err)
	}
	view := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "viewer"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "viewer"}},
	}
	if _, err := admin.RbacV1().RoleBindings(measuredNamespace).Create(ctx, view, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	viewer := m.client(t, "viewer")
	read(ctx, t, viewer, "namespaces/"+measuredNamespace+"/pods", &v1beta1.PodMetricsList{})
	if err := viewer.Discovery().RESTClient().Get().AbsPath(metricsPath + "namespaces/kube-system/pods").Do(ctx).Error(); !apierrors.IsForbidden(err) {
		t.Errorf("the metrics of a namespace in which the user has no role: %v, want 403", err)
	}
}

// pastTheServer calls the component directly, not through the aggregator of the API server. It
// checks that the component rejects the calls, and ignores the user in their headers.
func pastTheServer(ctx context.Context, t *testing.T, m machine) {
	pool := x509.NewCertPool()
	pool.AddCert(m.ca.Cert)
	leaf, err := m.ca.Issue(pki.Spec{CN: "front-proxy-client", O: []string{"system:masters"}, Usage: pki.Client, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(leaf.CertPEM(), leaf.KeyPEM())
	if err != nil {
		t.Fatal(err)
	}
	for what, certificates := range map[string][]tls.Certificate{"no certificate": nil, "a certificate of another CA": {pair}} {
		config := &tls.Config{RootCAs: pool, ServerName: nodespec.MetricsHost, Certificates: certificates}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: config}}
		for _, path := range []string{metricsPath + "nodes", "/apis", "/healthz", "/readyz", "/version", "/openapi/v3"} {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d%s", paths.PortMetrics, path), nil)
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("X-Remote-User", "admin")
			request.Header.Set("X-Remote-Group", "system:masters")
			response, err := client.Do(request)
			if err != nil {
				t.Errorf("%s, %s: %v", what, path, err)
				continue
			}
			response.Body.Close()
			if response.StatusCode != http.StatusUnauthorized {
				t.Errorf("%s, %s: %s, want 401", what, path, response.Status)
			}
		}
		client.CloseIdleConnections()
	}
	if conn, err := net.Dial("tcp", netip.AddrPortFrom(testSpec().Node.IPs[0], paths.PortMetrics).String()); err == nil {
		conn.Close()
		t.Error("the component listens on the machine's address")
	}
}

// metricsRights checks that the identity of the component may read the metrics of kubelets, and
// nothing else from kubelets. Of the APIServices, it may change only its own.
func metricsRights(ctx context.Context, t *testing.T, admin kubernetes.Interface) {
	for _, c := range []struct {
		allowed    bool
		attributes authorizationv1.ResourceAttributes
	}{
		{true, authorizationv1.ResourceAttributes{Verb: "get", Resource: "nodes", Subresource: "metrics", Name: measuredNode}},
		{false, authorizationv1.ResourceAttributes{Verb: "get", Resource: "nodes", Subresource: "proxy", Name: measuredNode}},
		{false, authorizationv1.ResourceAttributes{Verb: "create", Resource: "nodes", Subresource: "metrics", Name: measuredNode}},
		{true, authorizationv1.ResourceAttributes{Verb: "list", Resource: "pods"}},
		{false, authorizationv1.ResourceAttributes{Verb: "list", Resource: "secrets"}},
		{true, authorizationv1.ResourceAttributes{Verb: "update", Group: "apiregistration.k8s.io", Resource: "apiservices", Name: bootstrap.MetricsAPI}},
		{false, authorizationv1.ResourceAttributes{Verb: "update", Group: "apiregistration.k8s.io", Resource: "apiservices", Name: "v1."}},
		{false, authorizationv1.ResourceAttributes{Verb: "create", Group: "apiregistration.k8s.io", Resource: "apiservices"}},
	} {
		review := &authorizationv1.SubjectAccessReview{}
		review.Spec.User, review.Spec.ResourceAttributes = nodespec.MetricsUser, &c.attributes
		answer, err := admin.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil || answer.Status.Allowed != c.allowed {
			t.Errorf("%+v: %+v, %v; want allowed=%t", c.attributes, answer.Status, err, c.allowed)
		}
	}
}
