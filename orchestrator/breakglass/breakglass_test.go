package breakglass

import (
	"encoding/json"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

func object(text string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(text), &o.Object); err != nil {
		panic(err)
	}
	return o
}

var (
	hook = object(`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingWebhookConfiguration",
		"metadata":{"name":"policy","uid":"1","resourceVersion":"7","labels":{"a":"b"}},"webhooks":[{"name":"x.example.org","failurePolicy":"Fail"}]}`)
	definition = object(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"things.example.org","uid":"2"},
		"spec":{"group":"example.org","conversion":{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v1"]}}}}`)
	plain = object(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"plain.example.org"},
		"spec":{"conversion":{"strategy":"None"}}}`)
	local   = object(`{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1.apps"},"spec":{"group":"apps"}}`)
	metrics = object(`{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1beta1.metrics.k8s.io"},
		"spec":{"service":{"namespace":"kube-system","name":"orlop-metrics","port":443}}}`)
	flow = object(`{"apiVersion":"flowcontrol.apiserver.k8s.io/v1","kind":"FlowSchema","metadata":{"name":"all","uid":"3"},"spec":{"matchingPrecedence":2}}`)
	// Kubernetes restores the content of own, but not that of edited, because of the annotation.
	own = object(`{"apiVersion":"flowcontrol.apiserver.k8s.io/v1","kind":"PriorityLevelConfiguration",
		"metadata":{"name":"exempt","annotations":{"apf.kubernetes.io/autoupdate-spec":"true"}}}`)
	edited = object(`{"apiVersion":"flowcontrol.apiserver.k8s.io/v1","kind":"PriorityLevelConfiguration",
		"metadata":{"name":"system","annotations":{"apf.kubernetes.io/autoupdate-spec":"false"}}}`)
	foreign = object(`{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1.example.org"},
		"spec":{"service":{"namespace":"a","name":"b","port":443}}}`)
)

func cluster() *fake.FakeDynamicClient {
	lists := map[schema.GroupVersionResource]string{}
	for _, k := range nodespec.SuspendKinds() {
		lists[schema.GroupVersionResource{Group: k.Group, Version: k.Version, Resource: k.Resource}] = "List"
	}
	return fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists,
		hook.DeepCopy(), definition.DeepCopy(), plain.DeepCopy(), local.DeepCopy(), metrics.DeepCopy(), foreign.DeepCopy(), flow.DeepCopy(), own.DeepCopy(), edited.DeepCopy())
}

// TestRefused checks that objects of the system, missing objects, and objects without a webhook or
// service to remove are rejected.
func TestRefused(t *testing.T) {
	for _, c := range []struct{ kind, name, want string }{
		{"apiservice", "v1.apps", "the API server serves it itself"},
		{"apiservice", "v1beta1.metrics.k8s.io", "it belongs to the system"},
		{"apiservice", "v1.example.org", ""},
		{"flowschema", "all", ""},
		{"prioritylevelconfiguration", "exempt", "Kubernetes itself sets its content"},
		{"prioritylevelconfiguration", "system", ""},
		{"customresourcedefinition", "plain.example.org", "no webhook converts its objects"},
		{"validatingwebhookconfiguration", "gone", "not found"},
		{"pod", "x", "no such kind"},
	} {
		_, err := Run(t.Context(), cluster(), nodespec.SuspendRequest{Action: nodespec.SuspendRead, Kind: c.kind, Name: c.name})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s %s: %v, want %q", c.kind, c.name, err, c.want)
		}
	}
}

// TestSuspendAndResume checks that a removed object is restored without the fields that the server
// had set.
func TestSuspendAndResume(t *testing.T) {
	client := cluster()
	do := func(o nodespec.SuspendRequest) nodespec.SuspendResult {
		t.Helper()
		done, err := Run(t.Context(), client, o)
		if err != nil {
			t.Fatalf("%s: %v", o.Action, err)
		}
		return done
	}
	const kind = "validatingwebhookconfiguration"
	read := do(nodespec.SuspendRequest{Action: nodespec.SuspendRead, Kind: kind, Name: "policy"})
	if read.UID != "1" {
		t.Errorf("UID %q", read.UID)
	}
	do(nodespec.SuspendRequest{Action: nodespec.SuspendRemove, Kind: kind, Name: "policy", UID: read.UID})
	hooks := client.Resource(schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingwebhookconfigurations"})
	if _, err := hooks.Get(t.Context(), "policy", metav1.GetOptions{}); err == nil {
		t.Error("the removed object still exists")
	}
	back := nodespec.SuspendRequest{Action: nodespec.SuspendRestore, Kind: kind, Name: "policy", Object: read.Object}
	do(back)
	made, err := hooks.Get(t.Context(), "policy", metav1.GetOptions{})
	if err != nil || made.GetLabels()["a"] != "b" || made.GetUID() != "" || made.GetResourceVersion() != "" {
		t.Errorf("the restored object is %+v, %v", made, err)
	}
	if _, err := Run(t.Context(), client, back); err == nil || !strings.Contains(err.Error(), "another object has this name") {
		t.Errorf("restored twice: %v", err)
	}
}

// TestConverter checks that only the converter of a definition is removed and restored.
func TestConverter(t *testing.T) {
	client := cluster()
	definitions := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	order := nodespec.SuspendRequest{Action: nodespec.SuspendRead, Kind: "customresourcedefinition", Name: "things.example.org"}
	read, err := Run(t.Context(), client, order)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ action, want string }{
		{nodespec.SuspendRemove, `{"strategy":"None"}`},
		{nodespec.SuspendRestore, `{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v1"]}}`},
	} {
		order.Action, order.UID, order.Object = c.action, read.UID, read.Object
		if _, err := Run(t.Context(), client, order); err != nil {
			t.Fatalf("%s: %v", c.action, err)
		}
		now, err := definitions.Get(t.Context(), order.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		conversion, _, _ := unstructured.NestedMap(now.Object, "spec", "conversion")
		got, _ := json.Marshal(conversion)
		if group, _, _ := unstructured.NestedString(now.Object, "spec", "group"); string(got) != c.want || group != "example.org" {
			t.Errorf("%s: %s of group %q, want %s", c.action, got, group, c.want)
		}
	}
}
