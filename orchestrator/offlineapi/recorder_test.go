package offlineapi

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// groupVersion returns the group and version of a kind.
func groupVersion(t *testing.T, k kind) schema.GroupVersion {
	t.Helper()
	v, err := schema.ParseGroupVersion(k.version)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestReferences checks that references finds all objects to which the containers and volumes of a
// pod refer, without duplicates.
func TestReferences(t *testing.T) {
	var pod corev1.Pod
	err := yaml.Unmarshal([]byte(`
metadata: {name: p, namespace: one}
spec:
  imagePullSecrets: [{name: pull}]
  initContainers:
  - {name: i, envFrom: [{configMapRef: {name: init}}, {secretRef: {name: s}}]}
  containers:
  - name: c
    env:
    - {name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}
    - {name: B, valueFrom: {configMapKeyRef: {name: m, key: k}}}
  volumes:
  - {name: v1, secret: {secretName: files}}
  - {name: v2, projected: {sources: [{configMap: {name: kube-root-ca.crt}}, {serviceAccountToken: {path: token}}]}}
  - {name: v3, persistentVolumeClaim: {claimName: data}}
  - {name: v4, ephemeral: {volumeClaimTemplate: {}}}
  - {name: v5, emptyDir: {}}`), &pod)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range references(&pod) {
		got = append(got, r.kind.resource+"/"+r.namespace+"/"+r.name)
	}
	slices.Sort(got)
	want := []string{
		"configmaps/one/init", "configmaps/one/kube-root-ca.crt", "configmaps/one/m", "persistentvolumeclaims/one/data", "persistentvolumeclaims/one/p-v4",
		"secrets/one/files", "secrets/one/pull", "secrets/one/s",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestStartsOffline(t *testing.T) {
	now := metav1.Now()
	with := func(value string, change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{Annotation: value}}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		if change != nil {
			change(p)
		}
		return p
	}
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"annotation true":  {with("true", nil), true},
		"annotation false": {with("false", nil), false},
		"no annotation":    {&corev1.Pod{}, false},
		"being deleted":    {with("true", func(p *corev1.Pod) { p.DeletionTimestamp = &now }), false},
		"succeeded":        {with("true", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), false},
		"failed":           {with("true", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), false},
	} {
		if got := startsOffline(c.pod); got != c.want {
			t.Errorf("a pod with %s starts offline: %t, want %t", name, got, c.want)
		}
	}
}

// TestTrim checks that trim removes two groups of fields: all fields of pods on other nodes that
// policies do not use, and the fields that change constantly and would cause constant writes of the
// record.
func TestTrim(t *testing.T) {
	pod := objects(t, `
kind: Pod
apiVersion: v1
metadata: {name: a, namespace: one, uid: u, labels: {app: web}, annotations: {x: z}, managedFields: [{}]}
spec:
  nodeName: m
  containers: [{name: c, image: i, env: [{name: SECRET, value: x}], ports: [{name: http, containerPort: 80}]}]
status: {phase: Running, podIPs: [{ip: 10.0.0.1}], conditions: [{type: Ready, status: "True"}]}`)[0]
	var got corev1.Pod
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(trim(pods, pod), &got); err != nil {
		t.Fatal(err)
	}
	c := got.Spec.Containers[0]
	if got.Kind != "Pod" || got.Labels["app"] != "web" || got.Annotations != nil || c.Image != "" || c.Env != nil || c.Ports[0].Name != "http" || got.Status.PodIPs != nil || got.Status.Conditions != nil {
		t.Errorf("%+v", got)
	}
	node := trim(nodes, objects(t, `
kind: Node
apiVersion: v1
metadata: {name: n1, managedFields: [{}]}
spec: {podCIDRs: [10.0.0.0/24]}
status: {images: [{}], conditions: [{type: Ready}], addresses: [{type: InternalIP, address: 192.0.2.1}]}`)[0])
	status, _ := node["status"].(Object)
	if status["images"] != nil || status["conditions"] != nil || status["addresses"] == nil || node["metadata"].(Object)["managedFields"] != nil {
		t.Errorf("%v", node)
	}
}

// TestAlike checks which changes of a pod cause a new pass of the recorder: those for which alike
// reports false. The pods have only the fields that the informer retains.
func TestAlike(t *testing.T) {
	pod := func(change func(*corev1.Pod)) any {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u", Generation: 1, Annotations: map[string]string{Annotation: "true", "x": "y"}}}
		if change != nil {
			change(p)
		}
		out, err := outline(p)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	becomes := func(ready corev1.ConditionStatus) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
		}
	}
	for name, c := range map[string]struct {
		before, now any
		want        bool
	}{
		"no change":                      {pod(nil), pod(nil), true},
		"message of the status":          {pod(nil), pod(func(p *corev1.Pod) { p.Status.Message = "x" }), true},
		"resize":                         {pod(nil), pod(func(p *corev1.Pod) { p.Generation = 2 }), false},
		"new address":                    {pod(nil), pod(func(p *corev1.Pod) { p.Status.PodIP = "10.0.0.1" }), false},
		"becomes ready":                  {pod(becomes(corev1.ConditionFalse)), pod(becomes(corev1.ConditionTrue)), false},
		"becomes unready":                {pod(becomes(corev1.ConditionTrue)), pod(becomes(corev1.ConditionFalse)), true},
		"annotation removed":             {pod(nil), pod(func(p *corev1.Pod) { p.Annotations = nil }), false},
		"succeeded":                      {pod(nil), pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), false},
		"another pod with the same name": {pod(nil), pod(func(p *corev1.Pod) { p.UID = "v" }), false},
	} {
		if got := alike(c.before, c.now); got != c.want {
			t.Errorf("%s: alike reports %t, want %t", name, got, c.want)
		}
	}
}

// TestRead checks that the record contains a pod with the annotation and the objects to which the
// pod refers. The record omits two kinds of objects, and retains the others: objects with names
// that would form other paths, and volumes that the node may not read.
func TestRead(t *testing.T) {
	const own = `{"metadata": {"name": "p", "namespace": "one", "annotations": {"orlop.dev/start-without-api-server": "true"}}, "spec": {"nodeName": "n1",
		"imagePullSecrets": [{"name": "../../../services"}, {"name": "../../two/secrets/s"}, {"name": ".."}],
		"volumes": [{"name": "a", "secret": {"secretName": "s"}}, {"name": "b", "persistentVolumeClaim": {"claimName": "c"}}]}}`
	asked := map[string]bool{}
	answers := map[string]string{
		"/api/v1/pods":                                    `{"kind": "PodList", "items": [` + own + `]}`,
		"/api/v1/namespaces/one/secrets/s":                `{"kind": "Secret", "metadata": {"name": "s", "namespace": "one"}}`,
		"/api/v1/namespaces/two/secrets/s":                `{"kind": "Secret", "metadata": {"name": "s", "namespace": "two"}}`,
		"/api/v1/namespaces/one/persistentvolumeclaims/c": `{"kind": "PersistentVolumeClaim", "metadata": {"name": "c", "namespace": "one"}, "spec": {"volumeName": "others"}}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		asked[in.URL.Path] = true
		out.Header().Set("Content-Type", "application/json")
		switch text, is := answers[in.URL.Path]; {
		case is:
			_, _ = io.WriteString(out, text)
		case in.URL.Path == "/api/v1/persistentvolumes/others":
			out.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(out, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403}`)
		case strings.Contains(in.URL.Path, "csinodes"):
			out.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(out, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}`)
		default:
			_, _ = io.WriteString(out, `{"items": null}`)
		}
	}))
	defer server.Close()
	api, err := kubernetes.NewForConfig(&restclient.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	k := recorder{cluster: "c", node: "n1", kubelet: api.Discovery().RESTClient(), agent: api.Discovery().RESTClient()}
	if _, _, err := k.read(t.Context()); !apierrors.IsForbidden(err) {
		t.Errorf("the first read: %v, want forbidden", err)
	}
	r, problems, err := k.read(t.Context())
	if err != nil || len(problems) > 0 {
		t.Fatalf("%v, %q", err, problems)
	}
	if len(r.Objects["pods"]) != 1 || len(r.Objects["secrets"]) != 1 || len(r.Objects["persistentvolumeclaims"]) != 1 || len(r.Objects["persistentvolumes"]) != 0 {
		t.Errorf("%v", r.Objects)
	}
	if asked["/api/v1/namespaces/two/secrets/s"] || asked["/api/v1/namespaces/one/secrets"] || !asked["/api/v1/persistentvolumes/others"] {
		t.Errorf("requested %v", asked)
	}
	if slices.ContainsFunc(r.Missing, func(m Missing) bool { return m.Resource == "persistentvolumes" || m.Resource == "secrets" }) {
		t.Errorf("the record marks a Secret or a volume as absent: %v", r.Missing)
	}
	if _, err := newStore(&r); err != nil {
		t.Error(err)
	}
}

// TestItems checks that items decodes a list object by object, at any position of the field items
// in the JSON text. A truncated list is an error.
func TestItems(t *testing.T) {
	for text, want := range map[string]string{
		`{"kind": "PodList", "metadata": {"x": [1]}, "items": [{"a": "1"}, {"a": "2"}], "more": {}}`: "12",
		`{"items": [{"a": "1"}]}`:          "1",
		`{"items": [], "kind": "x"}`:       "",
		`{"items": null, "kind": "x"}`:     "",
		`{}`:                               "",
		`{"items": [{"a": "1"}, {"a": "2`:  "1 EOF",
		`{"items": [{"a": "1"}`:            "1 EOF",
		`{"items": [{"a": "1"}], "kind": `: "1 EOF",
		`{"items": [{"a": "1"}]`:           "1 EOF",
		``:                                 " EOF",
	} {
		got := ""
		if err := items(strings.NewReader(text), func(o Object) { got += o["a"].(string) }); err != nil {
			got += " " + strings.TrimPrefix(err.Error(), "unexpected ")
		}
		if got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
