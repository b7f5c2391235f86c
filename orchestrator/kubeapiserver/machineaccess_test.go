package kubeapiserver

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/orlop-os/orlop/pkg/machineapi"
)

// TestMachineAccess checks that, of the machine objects, a node can change only the status of its
// own OrlopMachine. The plugin does not limit other clients, and does not limit other objects.
func TestMachineAccess(t *testing.T) {
	node := &user.DefaultInfo{Name: "system:node:m1", Groups: []string{"system:nodes", "system:authenticated"}}
	own := machineapi.OrlopMachines
	machines := schema.GroupVersionResource{Group: "cluster.x-k8s.io", Version: "v1beta2", Resource: "machines"}
	for _, c := range []struct {
		title           string
		caller          user.Info
		resource        schema.GroupVersionResource
		subresource     string
		namespace, name string
		operation       admission.Operation
		ok              bool
	}{
		{"the status of its own OrlopMachine", node, own, "status", machineapi.Namespace, "m1", admission.Update, true},
		{"the specification of its own OrlopMachine", node, own, "", machineapi.Namespace, "m1", admission.Update, false},
		{"the status of another OrlopMachine", node, own, "status", machineapi.Namespace, "m2", admission.Update, false},
		{"an OrlopMachine of its name in another namespace", node, own, "status", "default", "m1", admission.Update, false},
		{"creates its own OrlopMachine", node, own, "", machineapi.Namespace, "m1", admission.Create, false},
		{"deletes its own OrlopMachine", node, own, "", machineapi.Namespace, "m1", admission.Delete, false},
		{"deletes all OrlopMachines", node, own, "", machineapi.Namespace, "", admission.Delete, false},
		{"its own Machine", node, machines, "", machineapi.Namespace, "m1", admission.Update, false},
		{"the status of its own Machine", node, machines, "status", machineapi.Namespace, "m1", admission.Update, false},
		{"the catalogue", node, machineapi.OrlopClusters, "status", machineapi.Namespace, "m1", admission.Update, false},
		{"a pod", node, schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "status", "default", "m1", admission.Update, true},
		{"a caller in the group of nodes without a node name", &user.DefaultInfo{Name: "m1", Groups: []string{"system:nodes"}}, own, "status", machineapi.Namespace, "m1", admission.Update, false},
		{"an operator", &user.DefaultInfo{Name: "admin", Groups: []string{"orlop:cluster-admins"}}, own, "", machineapi.Namespace, "m1", admission.Update, true},
		{"a kubelet's name without its group", &user.DefaultInfo{Name: "system:node:m1"}, own, "", machineapi.Namespace, "m1", admission.Update, true},
	} {
		a := admission.NewAttributesRecord(nil, nil, schema.GroupVersionKind{}, c.namespace, c.name, c.resource, c.subresource, c.operation, nil, false, c.caller)
		if err := (machineAccess{}).Validate(t.Context(), a, nil); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.title, err)
		}
	}
}
