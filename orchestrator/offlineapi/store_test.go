package offlineapi

import (
	"encoding/json"
	"errors"
	"io/fs"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta/testrestmapper"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// objects parses YAML documents. It returns an object for each document.
func objects(t *testing.T, text string) (all []Object) {
	t.Helper()
	for _, document := range strings.Split(text, "\n---\n") {
		var o Object
		if err := yaml.Unmarshal([]byte(document), &o); err != nil {
			t.Fatalf("%v in %s", err, document)
		}
		content, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		o = nil
		if err := json.Unmarshal(content, &o); err != nil {
			t.Fatal(err)
		}
		all = append(all, o)
	}
	return all
}

// record returns a record of node n1 with three pods: a with an address and b in the machine's
// network, both on n1, and c on another node. An EndpointSlice has these pods and two other
// endpoints.
func record(t *testing.T) *Record {
	t.Helper()
	return &Record{Cluster: "c", Node: "n1", At: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC), Objects: map[string][]Object{
		pods.resource: objects(t, `
kind: Pod
apiVersion: v1
metadata: {name: a, namespace: one, uid: ua, resourceVersion: "40", labels: {app: web}}
spec: {nodeName: n1, containers: [{name: c}]}
status:
  phase: Running
  podIP: 10.0.0.1
  podIPs: [{ip: 10.0.0.1}, {ip: "fd00::1"}]
  conditions: [{type: Ready, status: "True"}]
---
kind: Pod
apiVersion: v1
metadata: {name: b, namespace: one, uid: ub, resourceVersion: "41"}
spec: {nodeName: n1, hostNetwork: true, containers: [{name: c}]}
status: {phase: Running, podIPs: [{ip: 192.0.2.1}], conditions: [{type: Ready, status: "True"}]}
---
kind: Pod
apiVersion: v1
metadata: {name: c, namespace: two, uid: uc, resourceVersion: "39"}
spec: {nodeName: m, containers: [{name: c}]}
status: {phase: Running, podIPs: [{ip: 10.0.1.1}]}`),
		nodes.resource: objects(t, `
kind: Node
apiVersion: v1
metadata: {name: n1, resourceVersion: "7", annotations: {orlop.dev/local-volumes-obsolete: "[x]", orlop.dev/local-volumes-obsolete.fast: "[y]", orlop.dev/local-volumes-copies.fast: "[]", other: stays}}
status: {conditions: [{type: Ready, status: "True"}]}`),
		endpointSlices.resource: objects(t, `
kind: EndpointSlice
apiVersion: discovery.k8s.io/v1
metadata: {name: web-1, namespace: one, resourceVersion: "42", labels: {kubernetes.io/service-name: web}}
addressType: IPv4
endpoints:
- {addresses: [10.0.0.1], nodeName: n1, conditions: {ready: true}, targetRef: {kind: Pod, name: a, namespace: one, uid: ua}}
- {addresses: [192.0.2.1], nodeName: n1, conditions: {ready: true}, targetRef: {kind: Pod, name: b, namespace: one, uid: ub}}
- {addresses: [10.0.0.9], nodeName: n1, conditions: {ready: true}, targetRef: {kind: Pod, name: gone, namespace: one, uid: ug}}
- {addresses: [10.0.1.1], nodeName: m, conditions: {ready: true}, targetRef: {kind: Pod, name: c, namespace: two, uid: uc}}
- {addresses: [10.0.0.53], nodeName: n1, conditions: {ready: true}}`),
		secrets.resource: objects(t, `
kind: Secret
apiVersion: v1
metadata: {name: s, namespace: one, resourceVersion: "3"}
data: {k: dg==}`),
	}, Missing: []Missing{{"configmaps", "one", "optional"}}}
}

// listen starts a watch of the objects of a selection, from the version since on.
func listen(t *testing.T, w *store, s selection, since int64) *watch {
	t.Helper()
	one, err := w.watch(s, since)
	if err != nil {
		t.Fatal(err)
	}
	return one
}

// all selects all objects of a kind.
func all(k kind) selection {
	return selection{kind: k, labels: labels.Everything(), fields: fields.Everything()}
}

// endpoints returns the endpoints of the slice web-1 as texts: the address, and "not ready" if the
// endpoint is not ready.
func endpoints(t *testing.T, w *store) (found []string) {
	t.Helper()
	o := w.get(endpointSlices, types.NamespacedName{Namespace: "one", Name: "web-1"})
	list, _ := o["endpoints"].([]any)
	for _, e := range list {
		conditions, _ := e.(Object)["conditions"].(Object)
		word := e.(Object)["addresses"].([]any)[0].(string)
		if conditions["ready"] != true {
			word += " not ready"
		}
		found = append(found, word)
	}
	return found
}

// TestPodsStartAgain checks that a recorded pod has no address until the kubelet reports one, and
// that the EndpointSlice changes with the status of the pod. Watches receive both changes.
func TestPodsStartAgain(t *testing.T) {
	w, err := newStore(record(t))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := endpoints(t, w), []string{"192.0.2.1 not ready", "10.0.1.1", "10.0.0.53"}; !slices.Equal(got, want) {
		t.Errorf("after the start the endpoints are %v, want %v", got, want)
	}
	own := all(pods)
	own.fields = fields.OneTermEqualSelector("spec.nodeName", "n1")
	found, version := w.list(own)
	if len(found) != 2 || version > 10 {
		t.Fatalf("%d pods of the node at version %d", len(found), version)
	}
	status, _ := found[0]["status"].(Object)
	if status["podIP"] != nil || status["podIPs"] != nil || status["conditions"] != nil || status["phase"] != "Running" {
		t.Errorf("pod a has the status %v", status)
	}
	told := listen(t, w, own, version)
	slicesTold := listen(t, w, all(endpointSlices), version)
	a := types.NamespacedName{Namespace: "one", Name: "a"}
	const patch = `{"metadata":{"uid":"ua"},"status":{"podIP":"10.0.0.7","podIPs":[{"ip":"10.0.0.7"},{"ip":"fd00::7"}],"conditions":[{"type":"Ready","status":"True"}]}}`
	pod, err := w.patchStatus(a, []byte(patch))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := endpoints(t, w), []string{"10.0.0.7", "192.0.2.1 not ready", "10.0.1.1", "10.0.0.53"}; !slices.Equal(got, want) {
		t.Errorf("the endpoints are %v, want %v", got, want)
	}
	if event := <-told.events; !reflect.DeepEqual(event, pod) {
		t.Errorf("the watch of pods receives %v, want %v", event, pod)
	}
	if event := <-slicesTold.events; event["kind"] != "EndpointSlice" {
		t.Errorf("the watch of EndpointSlices receives %v", event)
	}
	// A client listed the pods before the change, and starts its watch now.
	late := listen(t, w, own, version)
	if event := <-late.events; !reflect.DeepEqual(event, pod) {
		t.Errorf("a watch that starts late receives %v", event)
	}
	w.unwatch(told)
	if _, err := w.patchStatus(a, []byte(`{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`)); err != nil {
		t.Fatal(err)
	}
	if got := endpoints(t, w)[0]; got != "10.0.0.7 not ready" {
		t.Errorf("the endpoint of an unready pod is %s", got)
	}
	select {
	case event := <-told.events:
		t.Errorf("an ended watch receives %v", event)
	default:
	}
	if _, err := w.watch(own, 1_000_000); !apierrors.IsResourceExpired(err) {
		t.Errorf("a watch from a version that only an API server can have returns %v, want expired", err)
	}
	for patch, want := range map[string]string{`{"metadata":{"uid":"other"}}`: "its uid is ua", `{`: "unexpected end"} {
		if _, err := w.patchStatus(a, []byte(patch)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", patch, err, want)
		}
	}
	if _, err := w.patchStatus(types.NamespacedName{Name: "x"}, []byte(`{}`)); err == nil {
		t.Error("patchStatus changes a pod that does not exist")
	}
}

// TestNodeIsNotReady checks that the condition Ready of the Node is Unknown. It also checks that
// the store omits the annotations that list volumes to destroy or to copy, for each pool.
func TestNodeIsNotReady(t *testing.T) {
	w, err := newStore(record(t))
	if err != nil {
		t.Fatal(err)
	}
	content, err := json.Marshal(w.get(nodes, types.NamespacedName{Name: "n1"}))
	if err != nil {
		t.Fatal(err)
	}
	var n corev1.Node
	if err := json.Unmarshal(content, &n); err != nil {
		t.Fatal(err)
	}
	c := n.Status.Conditions
	if len(c) != 1 || c[0].Type != corev1.NodeReady || c[0].Status != corev1.ConditionUnknown || c[0].Reason != reason || !strings.Contains(c[0].Message, "2026-05-01 12:00 UTC") {
		t.Errorf("conditions %v", c)
	}
	if len(n.Annotations) != 1 || n.Annotations["other"] != "stays" {
		t.Errorf("annotations %v", n.Annotations)
	}
}

// TestSlowWatch checks that the store closes a watch if the client reads too slowly.
func TestSlowWatch(t *testing.T) {
	w, err := newStore(record(t))
	if err != nil {
		t.Fatal(err)
	}
	events := listen(t, w, all(pods), w.version)
	for range maxPending + 2 {
		if _, err := w.patchStatus(types.NamespacedName{Namespace: "one", Name: "a"}, []byte(`{"status":{}}`)); err != nil {
			t.Fatal(err)
		}
	}
	heard := 0
	for range events.events {
		heard++
	}
	if heard != maxPending {
		t.Errorf("the watch received %d events before its end, want maxPending", heard)
	}
}

// TestSelections checks the field and label selectors that the node's components use.
func TestSelections(t *testing.T) {
	w, err := newStore(record(t))
	if err != nil {
		t.Fatal(err)
	}
	for selector, want := range map[string]int{
		"": 3, "spec.nodeName=n1": 2, "spec.nodeName!=n1": 1, "metadata.name=a": 1, "spec.nodeName=n1,status.phase!=Succeeded,status.phase!=Failed": 2, "status.phase=Failed": 0,
	} {
		s := all(pods)
		if s.fields, err = fields.ParseSelector(selector); err != nil {
			t.Fatal(err)
		}
		if found, _ := w.list(s); len(found) != want {
			t.Errorf("%q: %d pods, want %d", selector, len(found), want)
		}
	}
	s := all(pods)
	s.labels = labels.SelectorFromSet(labels.Set{"app": "web"})
	if found, _ := w.list(s); len(found) != 1 {
		t.Errorf("%d pods with the label, want 1", len(found))
	}
	s = all(pods)
	s.namespace = "two"
	if found, _ := w.list(s); len(found) != 1 {
		t.Errorf("%d pods in the namespace, want 1", len(found))
	}
}

// TestRecordOfAnotherNode checks that Read returns the whole stored record, but not on another node
// or in another cluster.
func TestRecordOfAnotherNode(t *testing.T) {
	dir := t.TempDir() + "/offline-api"
	if _, err := Read(dir, nodespec.Spec{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Read without a record: %v, want not exist", err)
	}
	want := record(t)
	if err := writeRecord(dir, *want); err != nil {
		t.Fatal(err)
	}
	got, err := Read(dir, nodespec.Spec{Cluster: "c", Node: nodespec.Node{Name: "n1"}})
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for _, spec := range []nodespec.Spec{{Cluster: "d", Node: nodespec.Node{Name: "n1"}}, {Cluster: "c", Node: nodespec.Node{Name: "m"}}} {
		if _, err := Read(dir, spec); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Read of the record by %+v: %v, want not exist", spec, err)
		}
	}
	for range 2 {
		if err := Remove(dir); err != nil {
			t.Fatal(err)
		}
	}
}

// TestKinds checks that the names of all kinds and resources are those of upstream's API.
func TestKinds(t *testing.T) {
	mapper := testrestmapper.TestOnlyStaticRESTMapper(scheme.Scheme)
	for _, k := range kinds {
		found, err := mapper.ResourcesFor(groupVersion(t, k).WithResource(k.resource))
		if err != nil || len(found) != 1 {
			t.Errorf("%s: %v, %v", k.resource, found, err)
		}
		kind, err := mapper.KindFor(groupVersion(t, k).WithResource(k.resource))
		if err != nil || kind.Kind != k.name {
			t.Errorf("%s: kind %v, %v", k.resource, kind, err)
		}
	}
}

// TestPublishNotReady checks that the endpoints of a Service with publishNotReadyAddresses are
// ready although their pods are not ready. So the members of a database, for example, can find each
// other.
func TestPublishNotReady(t *testing.T) {
	r := record(t)
	r.Objects[services.resource] = objects(t, `
kind: Service
apiVersion: v1
metadata: {name: web, namespace: one}
spec: {publishNotReadyAddresses: true}`)
	w, err := newStore(r)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := endpoints(t, w), []string{"192.0.2.1", "10.0.1.1", "10.0.0.53"}; !slices.Equal(got, want) {
		t.Errorf("the endpoints are %v, want %v", got, want)
	}
}

// TestPrune checks that prune removes all pods from the record that it does not get as its
// argument. When it removes the last pod, it removes the record, too.
func TestPrune(t *testing.T) {
	k := recorder{cluster: "c", node: "n1", dir: t.TempDir()}
	if err := writeRecord(k.dir, *record(t)); err != nil {
		t.Fatal(err)
	}
	names := func() []string {
		r, err := Read(k.dir, nodespec.Spec{Cluster: "c", Node: nodespec.Node{Name: "n1"}})
		if err != nil {
			t.Fatal(err)
		}
		return namesOf(r.Objects[pods.resource], "n1")
	}
	if err := k.prune(map[string]bool{"ua": true, "ub": true}); err != nil || len(names()) != 2 {
		t.Errorf("%v, the record has %v", err, names())
	}
	if err := k.prune(map[string]bool{"ub": true}); err != nil || !slices.Equal(names(), []string{"one/b"}) {
		t.Errorf("%v, the record has %v", err, names())
	}
	for range 2 {
		if err := k.prune(nil); err != nil {
			t.Error(err)
		}
		if _, err := Read(k.dir, nodespec.Spec{Cluster: "c", Node: nodespec.Node{Name: "n1"}}); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the record still exists: %v", err)
		}
	}
}
