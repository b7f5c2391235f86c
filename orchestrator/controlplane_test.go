package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/component-base/logs"
	"k8s.io/klog/v2"

	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/orchestrator/apivip"
	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/coredns"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/kernel/rtnl/rtnltest"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/pki"
)

// TestControlPlane starts the processes "api" and "controllers" as machined does, with real
// certificates. It checks that the processes serve, work, reject unknown clients and stop. It
// prints the timeline of the start.
func TestControlPlane(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	spec := testSpec()
	network(t, spec.Node.IPs[0].String()+"/24")
	site := newOutside(t)
	access := credentials.Access{Authentication: config.Authentication{Webhook: site.tokens()}}
	spec.TokenWebhook, spec.Network.Pools, spec.PodCertificates, spec.Kubernetes.PodEvictionTimeout = access.TokenWebhook(), testPool(), true, config.Duration(77*time.Second)
	m := prepare(t, spec)
	m.use(t, access)
	secrets := m.secrets(t)
	zero := time.Now()
	api := m.start(t, component.API, zero)
	controllers := m.start(t, component.Controllers, zero)
	api.waitReady(t, time.Minute, "etcd", "kube-apiserver", "bootstrap")
	controllers.waitReady(t, time.Minute, "node-ipam", "namespaces", "kube-controller-manager", "kube-scheduler", "loadbalancer", "local-volumes", "pod-certificates", "metrics", "addons", "node-taints")

	admin := m.client(t, "admin", "orlop:cluster-admins")
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	node, err := admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: spec.Node.Name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	waitNode(ctx, t, admin, node.Name, "pod range and label", func(n *corev1.Node) bool {
		_, marked := n.Labels["node-role.kubernetes.io/control-plane"]
		return n.Spec.PodCIDR == "10.244.0.0/24" && marked
	})
	t.Logf("%6.2fs node has its pod range", time.Since(zero).Seconds())
	// As soon as all components are ready, a client can create a pod, because all objects that
	// the pod mounts exist.
	if _, err := admin.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{}); err != nil {
		t.Errorf("the component namespaces is ready, but: %v", err)
	}
	if _, err := admin.CoreV1().ConfigMaps("default").Get(ctx, "kube-root-ca.crt", metav1.GetOptions{}); err != nil {
		t.Errorf("the component namespaces is ready, but: %v", err)
	}

	enoughEnded := endPods(ctx, t, admin, spec.Kubernetes.FinishedPods)
	fake := startKubelet(ctx, t, m, admin)
	fake.scaled(ctx, t)
	t.Run("unknown clients are rejected", func(t *testing.T) { strangers(ctx, t, m) })
	t.Run("secrets are encrypted", func(t *testing.T) { sealed(ctx, t, m, admin) })
	t.Run("pod security", func(t *testing.T) { podSecurity(ctx, t, admin) })
	t.Run("pods of lost nodes", func(t *testing.T) { podEviction(ctx, t, admin, spec.Kubernetes.PodEvictionTimeout.Seconds()) })
	t.Run("least rights", func(t *testing.T) { leastRights(ctx, t, m) })
	t.Run("documents", func(t *testing.T) { documents(ctx, t, admin) })
	t.Run("conventions", func(t *testing.T) { conventions(ctx, t, m, admin) })
	t.Run("callers", func(t *testing.T) { callers(ctx, t, m, admin, site) })
	t.Run("rights", func(t *testing.T) { rights(ctx, t, m, admin, site) })
	t.Run("without services", func(t *testing.T) { withoutServices(ctx, t, m, site) })
	t.Run("names", func(t *testing.T) { names(ctx, t, m, spec) })
	t.Run("addresses of services", func(t *testing.T) { serviceAddresses(ctx, t, admin) })
	t.Run("ports of machines", func(t *testing.T) { machinePorts(ctx, t, admin, spec.Node.IPs[0].String()) })
	t.Run("certificates of pods", func(t *testing.T) { podCertificates(ctx, t, m, admin, node) })
	t.Run("local volumes", func(t *testing.T) { localVolumes(ctx, t, admin) })
	t.Run("labels and taints of nodes", func(t *testing.T) { nodeLabels(ctx, t, m, admin) })
	t.Run("objects of machines", func(t *testing.T) { machineObjects(ctx, t, m, admin, api, controllers) })
	t.Run("metrics", func(t *testing.T) { resourceMetrics(ctx, t, m, admin, fake) })
	t.Run("add-ons", func(t *testing.T) { addOns(ctx, t, m, admin) })
	t.Run("removed nodes", func(t *testing.T) { removedNodes(ctx, t, m, admin) })
	t.Run("versions", func(t *testing.T) { listVersionsOf(ctx, t, m, spec) })
	t.Run("ended pods", enoughEnded)
	t.Run("drains", func(t *testing.T) { drains(ctx, t, m, admin, node.Name) })
	t.Run("unreadable secret", func(t *testing.T) { unreadableSecret(ctx, t, m, admin) })
	t.Run("lists of etcd", func(t *testing.T) { streamedLists(ctx, t, admin) })

	t.Logf("api: %s", api.usage(t))
	t.Logf("controllers: %s", controllers.usage(t))
	// The server stops first: it must stop in time while clients are connected.
	if err := api.stop(t, time.Minute); err != nil {
		t.Errorf("api ended with: %v", err)
	}
	if err := controllers.stop(t, time.Minute); err != nil {
		t.Errorf("controllers ended with: %v", err)
	}
	api.logHasNoSecrets(t, secrets)
	controllers.logHasNoSecrets(t, secrets)
}

// network sets loopback up and adds the node's address to it. A dummy interface would need a kernel
// module.
func network(t *testing.T, address string) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	parsed, err := netlink.ParseAddr(address)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrAdd(lo, parsed); err != nil {
		t.Fatal(err)
	}
}

// config returns a client configuration for the API server, with a client certificate of the
// cluster's CA.
func (m machine) config(t *testing.T, cn string, groups ...string) *rest.Config {
	t.Helper()
	leaf, err := m.ca.Issue(pki.Spec{CN: cn, O: groups, Usage: pki.Client, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	server := kubeconfig.Local()
	return &rest.Config{Host: server.URL, QPS: -1, TLSClientConfig: rest.TLSClientConfig{
		ServerName: server.Name, CAData: m.ca.CertPEM(), CertData: leaf.CertPEM(), KeyData: leaf.KeyPEM(),
	}}
}

func (m machine) client(t *testing.T, cn string, groups ...string) kubernetes.Interface {
	t.Helper()
	return kubernetes.NewForConfigOrDie(m.config(t, cn, groups...))
}

// waitNode waits until good returns true for the Node. property describes the expected state.
func waitNode(ctx context.Context, t *testing.T, client kubernetes.Interface, name, property string, good func(*corev1.Node) bool) {
	t.Helper()
	selector := fields.OneTermEqualSelector("metadata.name", name)
	nodes := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", "", selector)
	_, err := watchtools.UntilWithSync(ctx, nodes, &corev1.Node{}, nil, func(e watch.Event) (bool, error) {
		n, ok := e.Object.(*corev1.Node)
		return ok && good(n), nil
	})
	if err != nil {
		t.Fatalf("node %s has no %s: %v", name, property, err)
	}
}

func waitAccount(ctx context.Context, t *testing.T, client kubernetes.Interface, namespace string) {
	t.Helper()
	accounts := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "serviceaccounts", namespace, fields.Everything())
	if _, err := watchtools.UntilWithSync(ctx, accounts, &corev1.ServiceAccount{}, nil, func(e watch.Event) (bool, error) { return true, nil }); err != nil {
		t.Fatalf("namespace %s has no service account: %v", namespace, err)
	}
}

func strangers(ctx context.Context, t *testing.T, m machine) {
	anonymous := m.config(t, "nobody")
	anonymous.CertData, anonymous.KeyData = nil, nil
	client := kubernetes.NewForConfigOrDie(anonymous).Discovery().RESTClient()
	for path, allowed := range map[string]bool{"/livez": true, "/readyz": true, "/healthz": true, "/version": false, "/api": false, "/metrics": false} {
		err := client.Get().AbsPath(path).Do(ctx).Error()
		if allowed && err != nil {
			t.Errorf("%s without credentials: %v", path, err)
		}
		if !allowed && !apierrors.IsUnauthorized(err) {
			t.Errorf("%s without credentials: %v, want 401", path, err)
		}
	}
	// The probe for the virtual address excludes the checks of etcd by name. A warning in the
	// answer means that upstream has renamed these checks.
	answer, err := client.Get().RequestURI(apivip.ReadyPath + "&verbose").Do(ctx).Raw()
	if err != nil || !bytes.Contains(answer, []byte("[+]etcd excluded: ok")) || bytes.Contains(answer, []byte("cannot be excluded")) {
		t.Errorf("%s: %v\n%s", apivip.ReadyPath, err, answer)
	}
	foreign, err := pki.NewCA("kubernetes", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := foreign.Issue(pki.Spec{CN: "admin", O: []string{"orlop:cluster-admins"}, Usage: pki.Client, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	forged := m.config(t, "nobody")
	forged.CertData, forged.KeyData = leaf.CertPEM(), leaf.KeyPEM()
	if _, err := kubernetes.NewForConfigOrDie(forged).CoreV1().Nodes().List(ctx, metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("a certificate of another CA: %v, want 401", err)
	}
	for _, port := range []int{2379, 8080, 10250} {
		if conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			conn.Close()
			t.Errorf("port %d is open", port)
		}
	}
	info, err := os.Stat(m.dirs.EtcdSocket())
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		t.Errorf("etcd's socket has mode %s, so other users may connect to it", info.Mode())
	}
}

func sealed(ctx context.Context, t *testing.T, m machine, admin kubernetes.Interface) {
	const word = "correct-horse-battery-staple"
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"word": word}}
	if _, err := admin.CoreV1().Secrets("default").Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(m.dirs.EtcdData, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err == nil && bytes.Contains(content, []byte(word)) {
			t.Errorf("%s contains the secret without encryption", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	audit, err := os.ReadFile(filepath.Join(m.dirs.AuditLog, "audit.log"))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(audit, []byte(word)) {
		t.Error("the audit log contains the secret")
	}
	if !bytes.Contains(audit, []byte(`"resource":"secrets"`)) {
		t.Error("the audit log has no entry about the creation of the secret")
	}
}

func podSecurity(ctx context.Context, t *testing.T, admin kubernetes.Interface) {
	yes := true
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "c", Image: "none.local/x", SecurityContext: &corev1.SecurityContext{Privileged: &yes},
	}}}}
	if _, err := admin.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a privileged pod in default: %v, want forbidden", err)
	}
	if err := admin.CoreV1().Pods("kube-system").Delete(ctx, "p", metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the rejected pod exists, or cannot be looked for: %v", err)
	}
}

// podEviction checks that a pod without tolerations of its own stays on a lost or unready node for
// the configured time.
func podEviction(ctx context.Context, t *testing.T, admin kubernetes.Interface, want int64) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none.local/x"}}}}
	pod, err := admin.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		if !slices.ContainsFunc(pod.Spec.Tolerations, func(o corev1.Toleration) bool {
			return o.Key == key && o.Effect == corev1.TaintEffectNoExecute && o.TolerationSeconds != nil && *o.TolerationSeconds == want
		}) {
			t.Errorf("tolerations %v, want one of %s for %d s", pod.Spec.Tolerations, key, want)
		}
	}
}

// leastRights checks, for each identity of the machine's components, one operation for which it has
// the right, and one for which it has not.
func leastRights(ctx context.Context, t *testing.T, m machine) {
	dns := m.client(t, "orlop:coredns")
	if _, err := dns.CoreV1().Services("").List(ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("DNS cannot list services: %v", err)
	}
	if _, err := dns.CoreV1().Secrets("").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("DNS lists secrets: %v, want forbidden", err)
	}
	agent := m.client(t, "orlop:node-agent:node-1", "orlop:node-agents")
	if _, err := agent.CoreV1().Nodes().Get(ctx, "node-1", metav1.GetOptions{}); err != nil {
		t.Errorf("node agent cannot read its node: %v", err)
	}
	if _, err := agent.CoreV1().Services("").List(ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("node agent cannot list services: %v", err)
	}
	if _, err := agent.DiscoveryV1().EndpointSlices("").List(ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("node agent cannot list slices: %v", err)
	}
	if err := agent.DiscoveryV1().EndpointSlices("default").Delete(ctx, "kubernetes", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("node agent deletes a slice of another namespace: %v, want forbidden", err)
	}
	if _, err := agent.CoreV1().Secrets("").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("node agent lists secrets: %v, want forbidden", err)
	}
	if _, err := agent.CoreV1().Pods("").List(ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("node agent cannot list all pods, which network policies select by label: %v", err)
	}
	if _, err := agent.NetworkingV1().NetworkPolicies("").List(ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("node agent cannot list network policies: %v", err)
	}
	if _, err := agent.CoreV1().Secrets("").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("node agent lists secrets: %v, want forbidden", err)
	}
	if err := agent.CoreV1().Pods("default").Delete(ctx, "p", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("node agent deletes a pod: %v, want forbidden", err)
	}
	kubelet := m.client(t, "system:node:node-1", "system:nodes")
	if _, err := kubelet.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, "node-1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("kubelet reads its node's lease: %v, want not found, because it does not exist yet", err)
	}
	if err := kubelet.CoreV1().Nodes().Delete(ctx, "node-2", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("kubelet deletes a node: %v, want forbidden", err)
	}
}

// documents checks that the first request for the OpenAPI documents gets all of them, in both
// versions.
func documents(ctx context.Context, t *testing.T, admin kubernetes.Interface) {
	paths, err := admin.Discovery().OpenAPIV3().Paths()
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range []string{"api/v1", "apis/apps/v1", "apis/apiextensions.k8s.io/v1", "apis/apiregistration.k8s.io/v1"} {
		path, listed := paths[group]
		if !listed {
			t.Errorf("no OpenAPI v3 document of %s", group)
			continue
		}
		if text, err := path.Schema("application/json"); err != nil || !bytes.Contains(text, []byte(`"openapi":"3.0.0"`)) {
			t.Errorf("OpenAPI v3 document of %s: %d bytes, %v", group, len(text), err)
		}
	}
	v2, err := admin.Discovery().OpenAPISchema()
	if err != nil {
		t.Fatal(err)
	}
	wanted := map[string]bool{"io.k8s.api.core.v1.Pod": false, "io.k8s.kube-aggregator.pkg.apis.apiregistration.v1.APIService": false}
	for _, d := range v2.GetDefinitions().GetAdditionalProperties() {
		if _, is := wanted[d.GetName()]; is {
			wanted[d.GetName()] = true
		}
	}
	for name, there := range wanted {
		if !there {
			t.Errorf("OpenAPI v2: no definition of %s", name)
		}
	}
}

// streamedLists checks that the API server reads lists from etcd as a stream, which etcd supports
// since 3.7. Without the support, the API server would read pages instead, without an error.
func streamedLists(ctx context.Context, t *testing.T, admin kubernetes.Interface) {
	metrics, err := admin.Discovery().RESTClient().Get().AbsPath("/metrics").Do(ctx).Raw()
	if err != nil {
		t.Fatal(err)
	}
	lists := regexp.MustCompile(`(?m)^apiserver_storage_list_duration_seconds_count\{.*$`).FindAll(metrics, -1)
	if !slices.ContainsFunc(lists, func(line []byte) bool { return bytes.Contains(line, []byte(`streamed="true"`)) }) {
		t.Errorf("no list was streamed: %s", bytes.Join(lists, []byte("\n")))
	}
}

// names runs CoreDNS with its own identity beside the control plane, as a node does, and sends
// queries to it.
func names(ctx context.Context, t *testing.T, m machine, spec nodespec.Spec) {
	spec.DNS.NodeUpstreams = nil
	if err := coredns.Component(spec, m.dirs).WriteFiles(); err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	ready, ended := make(chan struct{}), make(chan error, 1)
	addresses := func(context.Context) ([]netip.Addr, error) { return spec.Node.IPs, nil }
	env := component.Env{Dir: m.dirs.Node, Spec: spec, Dirs: m.dirs, Announce: func(_ string, is bool, _ string) {
		if is {
			close(ready)
		}
	}}
	go func() { ended <- coredns.Run(running, env, addresses) }()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatalf("CoreDNS ended: %v", err)
	case <-ctx.Done():
		t.Fatal("CoreDNS does not answer")
	}
	logsPass(ctx, t)
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort(spec.Node.IPs[0].String(), "53"))
	}}
	for name, want := range map[string]string{
		"kubernetes.default.svc.cluster.local.":   "10.96.0.1",
		"kube-dns.kube-system.svc.cluster.local.": "10.96.0.10",
	} {
		if got, err := resolver.LookupHost(ctx, name); err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("%s: %v, %v; want %s", name, got, err, want)
		}
	}
	for _, name := range []string{"nobody.default.svc.cluster.local.", "example.org."} {
		_, err := resolver.LookupHost(ctx, name)
		if failure := (&net.DNSError{}); !errors.As(err, &failure) || !failure.IsNotFound {
			t.Errorf("%s: %v, want no such name", name, err)
		}
	}
	if got, err := resolver.LookupAddr(ctx, "10.96.0.10"); err != nil || len(got) != 1 || got[0] != "kube-dns.kube-system.svc.cluster.local." {
		t.Errorf("name of 10.96.0.10: %v, %v", got, err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// logsPass checks that a write to klog beside CoreDNS does not deadlock, even if the log of the
// standard library is redirected to klog. A deadlock would stop the kubelet.
func logsPass(ctx context.Context, t *testing.T) {
	log.SetOutput(logs.KlogWriter{})
	defer log.SetOutput(os.Stderr)
	passed := make(chan struct{})
	go func() {
		klog.Info("a line of Kubernetes")
		log.Print("a line of CoreDNS")
		close(passed)
	}()
	select {
	case <-passed:
	case <-ctx.Done():
		t.Fatal("a write to klog has a deadlock")
	}
}
