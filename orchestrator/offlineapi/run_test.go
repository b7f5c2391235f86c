package offlineapi

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/pki"
)

// machine is a machine with a record, on which no API server is ready.
type machine struct {
	dirs   dirs.Dirs
	ca     *pki.CA
	server *Server
	said   chan string // the details that the server reports
	ended  chan error  // the result of Server.Run
}

// start starts the offline API server of a machine. The server ends with the test.
func start(t *testing.T) *machine {
	t.Helper()
	ca, err := pki.NewCA("kubernetes", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{dirs: dirs.In(t.TempDir()), ca: ca, said: make(chan string, 100), ended: make(chan error, 1)}
	spec := nodespec.Spec{Cluster: "c", Node: nodespec.Node{Name: "n1"}}
	files := map[string][]byte{nodespec.CA: ca.CertPEM()}
	for cert, key := range map[string]string{nodespec.KubeletCert: nodespec.KubeletKey, nodespec.NodeAgentCert: nodespec.NodeAgentKey} {
		leaf := m.leaf(t, "any")
		files[cert], files[key] = leaf.CertPEM(), leaf.KeyPEM()
	}
	if err := os.MkdirAll(m.dirs.Node, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(m.dirs.Node, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := writeRecord(m.dirs.OfflineAPI, *record(t)); err != nil {
		t.Fatal(err)
	}
	if m.server, err = New(spec, m.dirs); err != nil {
		t.Fatal(err)
	}
	for _, c := range Components(spec, m.dirs) {
		if err := c.WriteFiles(); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() { m.ended <- m.server.Run(ctx, func(_ string, _ bool, detail string) { m.said <- detail }) }()
	t.Cleanup(func() {
		stop()
		if err := <-m.ended; err != nil {
			t.Error(err)
		}
	})
	return m
}

func (m *machine) leaf(t *testing.T, name string) *pki.Leaf {
	t.Helper()
	leaf, err := m.ca.Issue(pki.Spec{CN: name, Usage: pki.Client, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return leaf
}

// as returns a client with a certificate for a user name. The client verifies the server as the
// node's components do.
func (m *machine) as(t *testing.T, name string) kubernetes.Interface {
	t.Helper()
	leaf := m.leaf(t, name)
	config := &rest.Config{
		Host: "https://" + m.server.Address(), ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeProtobuf},
		TLSClientConfig: rest.TLSClientConfig{CAFile: m.dirs.Authorities(), ServerName: "localhost", CertData: leaf.CertPEM(), KeyData: leaf.KeyPEM()},
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// TestKubelet performs, with upstream's client, the requests by which the kubelet starts pods. The
// kubelet watches the pods, reads the objects to which they refer, gets a placeholder token, and
// writes the status of the pods. The service proxy receives the endpoints that result from this
// status. An object that the record marks as absent is not found. A request for an object that the
// record does not mention fails with "unavailable", and so does each other change.
func TestKubelet(t *testing.T) {
	m := start(t)
	ctx := t.Context()
	kubelet := m.as(t, "system:node:n1")
	factory := informers.NewSharedInformerFactoryWithOptions(kubelet, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = "spec.nodeName=n1" }))
	own := factory.Core().V1().Pods()
	proxied := informers.NewSharedInformerFactory(m.as(t, "system:kube-proxy"), 0)
	endpoints := proxied.Discovery().V1().EndpointSlices()
	heard := make(chan *discoveryv1.EndpointSlice, 10)
	if _, err := endpoints.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(_, now any) { heard <- now.(*discoveryv1.EndpointSlice) }}); err != nil {
		t.Fatal(err)
	}
	for _, f := range []informers.SharedInformerFactory{factory, proxied} {
		informer := own.Informer()
		if f == proxied {
			informer = endpoints.Informer()
		}
		f.Start(ctx.Done())
		if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			t.Fatal("the informers of the pods and of the EndpointSlices do not sync")
		}
	}
	if pod, err := own.Lister().Pods("one").Get("a"); err != nil || pod.UID != "ua" || pod.Status.PodIP != "" {
		t.Errorf("%v, %v", pod, err)
	}
	core := kubelet.CoreV1()
	if s, err := core.Secrets("one").Get(ctx, "s", metav1.GetOptions{}); err != nil || string(s.Data["k"]) != "v" {
		t.Errorf("Secret: %v, %v", s, err)
	}
	if _, err := core.ConfigMaps("one").Get(ctx, "optional", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a ConfigMap that the record marks as absent: %v, want not found", err)
	}
	one := metav1.ListOptions{FieldSelector: "metadata.name=optional"}
	if list, err := core.ConfigMaps("one").List(ctx, one); err != nil || len(list.Items) != 0 {
		t.Errorf("a list of a ConfigMap that the record marks as absent: %v, %v, want an empty list", list, err)
	}
	one.FieldSelector = "metadata.name=unknown"
	_, err := core.ConfigMaps("one").List(ctx, one)
	for what, err := range map[string]error{
		"a ConfigMap that the record does not mention": err,
		"a Secret that the record does not mention":    errorOf(core.Secrets("one").Get(ctx, "unknown", metav1.GetOptions{})),
		"a ServiceAccount":                             errorOf(core.ServiceAccounts("one").Get(ctx, "default", metav1.GetOptions{})),
		"the deletion of a pod":                        core.Pods("one").Delete(ctx, "a", metav1.DeleteOptions{}),
		"a change of the Node":                         errorOf(core.Nodes().Patch(ctx, "n1", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{}, "status")),
		"a merge patch of a pod":                       errorOf(core.Pods("one").Patch(ctx, "a", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{}, "status")),
		"a new Node":                                   errorOf(core.Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{})),
	} {
		if !apierrors.IsServiceUnavailable(err) {
			t.Errorf("%s: %v, want it to be unavailable", what, err)
		}
	}
	hour := int64(3600)
	asked := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &hour}}
	token, err := core.ServiceAccounts("one").CreateToken(ctx, "default", asked, metav1.CreateOptions{})
	if err != nil || token.Status.Token != noToken || *token.Spec.ExpirationSeconds != 60 || time.Until(token.Status.ExpirationTimestamp.Time) > tokenTTL {
		t.Errorf("token %v, %v", token, err)
	}
	const status = `{"metadata":{"uid":"ua"},"status":{"podIP":"10.0.0.7","podIPs":[{"ip":"10.0.0.7"}],"conditions":[{"type":"Ready","status":"True"}]}}`
	if pod, err := core.Pods("one").Patch(ctx, "a", types.StrategicMergePatchType, []byte(status), metav1.PatchOptions{}, "status"); err != nil || pod.Status.PodIP != "10.0.0.7" {
		t.Errorf("%v, %v", pod, err)
	}
	if s := <-heard; s.Endpoints[0].Addresses[0] != "10.0.0.7" || !*s.Endpoints[0].Conditions.Ready {
		t.Errorf("the service proxy receives the endpoints %v, want the new address, ready", s.Endpoints)
	}

	if _, err := os.Stat(m.server.met()); err == nil {
		t.Error("the file that records a ready API server exists too early")
	}

	// Now an API server is ready. The offline API server ends each watch with an error that makes
	// the client list again. The node's components no longer trust the offline API server, and it
	// no longer answers.
	watching, err := core.Pods("").Watch(ctx, metav1.ListOptions{ResourceVersion: "1"})
	if err != nil {
		t.Fatal(err)
	}
	m.server.Stop()
	event := <-watching.ResultChan()
	for event.Type == "MODIFIED" { // changes since the start of the watch
		event = <-watching.ResultChan()
	}
	if event.Type != "ERROR" || !apierrors.IsResourceExpired(apierrors.FromObject(event.Object)) {
		t.Errorf("the watch receives %v", event)
	}
	deadline := time.After(time.Minute)
	for gone := false; !gone; {
		_, err := m.as(t, "system:node:n1").CoreV1().Pods("one").Get(ctx, "a", metav1.GetOptions{})
		gone = err != nil
		select {
		case <-deadline:
			t.Fatal("the offline API server still answers")
		case <-time.After(10 * time.Millisecond):
		}
	}
	if err := m.server.authorities(); err != nil {
		t.Fatal(err)
	}
	// A process that starts later does not serve the record.
	for found := false; !found; {
		_, err := os.Stat(m.server.met())
		found = err == nil
		select {
		case <-deadline:
			t.Fatal("the file that records a ready API server does not exist")
		case <-time.After(10 * time.Millisecond):
		}
	}
	if next, err := New(nodespec.Spec{Cluster: "c", Node: nodespec.Node{Name: "n1"}}, m.dirs); err != nil || next.Address() != "" || next.problem != "" {
		t.Errorf("a later process: error %v, address %q, problem %q", err, next.Address(), next.problem)
	}
	if content, err := os.ReadFile(m.dirs.Authorities()); err != nil || string(content) != string(m.ca.CertPEM()) {
		t.Errorf("trusted CAs: %s, %v", content, err)
	}
}

func errorOf(_ any, err error) error { return err }

// TestStrangers checks that a client without a certificate of a component, for example a pod in the
// machine's network, gets no data. A component gets no data that an API server would deny to it.
func TestStrangers(t *testing.T) {
	m := start(t)
	ctx := t.Context()
	for _, name := range []string{"system:node:other", "admin", nodespec.NodeAgentUser + "other"} {
		if _, err := m.as(t, name).CoreV1().Pods("").List(ctx, metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"system:kube-proxy", "orlop:coredns", nodespec.NodeAgentUser + "n1"} {
		client := m.as(t, name).CoreV1()
		if _, err := client.Services("").List(ctx, metav1.ListOptions{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := client.Secrets("one").Get(ctx, "s", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("%s reads a Secret: %v", name, err)
		}
		if _, err := client.Pods("one").Patch(ctx, "a", types.StrategicMergePatchType, []byte(`{}`), metav1.PatchOptions{}, "status"); err == nil {
			t.Errorf("%s changes a pod", name)
		}
	}
	// clients without a certificate
	web := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer web.CloseIdleConnections()
	for path, want := range map[string]int{"/livez": 200, "/healthz": 200, "/api/v1/pods": 401, "/api/v1/namespaces/one/secrets/s": 401, "/": 401} {
		answer, err := web.Get("https://" + m.server.Address() + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || answer.StatusCode != want || strings.Contains(string(body), "dg==") {
			t.Errorf("%s: %d, %v", path, answer.StatusCode, err)
		}
	}
}

// TestNoRecord checks that the server does not listen without a record or with a damaged record.
// The components then trust only the cluster's CA.
func TestNoRecord(t *testing.T) {
	for name, content := range map[string]string{"no record": "", "truncated record": `{"cluster":"c","node":"n1","obj`, "record with an object without a name": `{"cluster":"c","node":"n1","objects":{"pods":[{}]}}`} {
		dirs := dirs.In(t.TempDir())
		for path, content := range map[string]string{filepath.Join(dirs.Node, nodespec.CA): "the CA\n", filepath.Join(dirs.OfflineAPI, fileName): content} {
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if content == "" {
				continue
			}
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s, err := New(nodespec.Spec{Cluster: "c", Node: nodespec.Node{Name: "n1"}}, dirs)
		if err != nil || s.Address() != "" || (s.problem == "") != (content == "") {
			t.Errorf("%s: error %v, address %q, problem %q", name, err, s.Address(), s.problem)
		}
		if content, err := os.ReadFile(dirs.Authorities()); err != nil || string(content) != "the CA\n" {
			t.Errorf("%s: trusted CAs: %q, %v", name, content, err)
		}
	}
}
