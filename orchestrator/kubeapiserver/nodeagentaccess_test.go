package kubeapiserver

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kubernetes/pkg/apis/discovery"
)

// TestNodeAgents checks that an agent can write only the EndpointSlices of the cluster DNS for its
// own node. The plugin does not limit other users.
func TestNodeAgents(t *testing.T) {
	slice := func(name, service, node string) *discovery.EndpointSlice {
		return &discovery.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "kube-system", Labels: map[string]string{"kubernetes.io/service-name": service}},
			Endpoints:  []discovery.Endpoint{{Addresses: []string{"10.244.1.1"}, NodeName: &node}},
		}
	}
	agent := &user.DefaultInfo{Name: "orlop:node-agent:b", Groups: []string{"orlop:node-agents"}}
	slices := schema.GroupVersionResource{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}
	for _, c := range []struct {
		name      string
		caller    user.Info
		object    runtime.Object
		stored    string
		resource  schema.GroupVersionResource
		operation admission.Operation
		ok        bool
	}{
		{"creates its own slice", agent, slice("kube-dns-b-ipv4", "kube-dns", "b"), "", slices, admission.Create, true},
		{"updates its own slice", agent, slice("kube-dns-b-ipv6", "kube-dns", "b"), "kube-dns-b-ipv6", slices, admission.Update, true},
		{"deletes its own slice", agent, nil, "kube-dns-b-ipv4", slices, admission.Delete, true},
		{"creates the slice of another node", agent, slice("kube-dns-a-ipv4", "kube-dns", "b"), "", slices, admission.Create, false},
		{"deletes the slice of another node", agent, nil, "kube-dns-a-ipv4", slices, admission.Delete, false},
		{"an endpoint on another node", agent, slice("kube-dns-b-ipv4", "kube-dns", "a"), "", slices, admission.Create, false},
		{"a slice of another Service", agent, slice("kube-dns-b-ipv4", "metrics", "b"), "", slices, admission.Create, false},
		{"a slice with another name", agent, slice("mine", "kube-dns", "b"), "", slices, admission.Create, false},
		{"another resource", agent, slice("kube-dns-b-ipv4", "kube-dns", "b"), "", schema.GroupVersionResource{Version: "v1", Resource: "endpoints"}, admission.Create, false},
		{"an agent without a node", &user.DefaultInfo{Name: "orlop:node-agent:", Groups: agent.Groups}, slice("kube-dns--ipv4", "kube-dns", ""), "", slices, admission.Create, false},
		{"another user", &user.DefaultInfo{Name: "alice"}, slice("mine", "kube-dns", "a"), "", slices, admission.Create, true},
	} {
		a := admission.NewAttributesRecord(c.object, nil, schema.GroupVersionKind{}, "kube-system", c.stored, c.resource, "", c.operation, nil, false, c.caller)
		if err := (nodeAgents{}).Validate(t.Context(), a, nil); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
