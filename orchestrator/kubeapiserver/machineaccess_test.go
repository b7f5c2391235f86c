package kubeapiserver

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/orlop-os/orlop/pkg/machineapi"
)

// TestMachineAccess checks that a node writes only the status of its own OrlopMachine, and that the
// plugin limits no other client and no other object.
func TestMachineAccess(t *testing.T) {
	node := &user.DefaultInfo{Name: "system:node:m1", Groups: []string{"system:nodes", "system:authenticated"}}
	own := machineapi.OrlopMachines
	machines := schema.GroupVersionResource{Group: "cluster.x-k8s.io", Version: "v1beta2", Resource: "machines"}
	for _, c := range []struct {
		what            string
		who             user.Info
		resource        schema.GroupVersionResource
		part            string
		namespace, name string
		how             admission.Operation
		ok              bool
	}{
		{"its own status", node, own, "status", machineapi.Namespace, "m1", admission.Update, true},
		{"its own specification", node, own, "", machineapi.Namespace, "m1", admission.Update, false},
		{"the status of another", node, own, "status", machineapi.Namespace, "m2", admission.Update, false},
		{"its name in another namespace", node, own, "status", "default", "m1", admission.Update, false},
		{"creates its object", node, own, "", machineapi.Namespace, "m1", admission.Create, false},
		{"deletes its object", node, own, "", machineapi.Namespace, "m1", admission.Delete, false},
		{"deletes all objects", node, own, "", machineapi.Namespace, "", admission.Delete, false},
		{"its own Machine", node, machines, "", machineapi.Namespace, "m1", admission.Update, false},
		{"the status of its own Machine", node, machines, "status", machineapi.Namespace, "m1", admission.Update, false},
		{"the catalogue", node, machineapi.OrlopClusters, "status", machineapi.Namespace, "m1", admission.Update, false},
		{"a pod", node, schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "status", "default", "m1", admission.Update, true},
		{"a user without a node", &user.DefaultInfo{Name: "m1", Groups: []string{"system:nodes"}}, own, "status", machineapi.Namespace, "m1", admission.Update, false},
		{"an operator", &user.DefaultInfo{Name: "admin", Groups: []string{"orlop:cluster-admins"}}, own, "", machineapi.Namespace, "m1", admission.Update, true},
		{"a kubelet's name without its group", &user.DefaultInfo{Name: "system:node:m1"}, own, "", machineapi.Namespace, "m1", admission.Update, true},
	} {
		a := admission.NewAttributesRecord(nil, nil, schema.GroupVersionKind{}, c.namespace, c.name, c.resource, c.part, c.how, nil, false, c.who)
		if err := (machineAccess{}).Validate(t.Context(), a, nil); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}
