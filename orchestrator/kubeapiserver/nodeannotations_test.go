package kubeapiserver

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kubernetes/pkg/apis/core"
)

// TestNodeAnnotations checks that no kubelet can change the control plane's annotations of a Node,
// and that all other changes pass.
func TestNodeAnnotations(t *testing.T) {
	node := func(note string) runtime.Object {
		n := &core.Node{ObjectMeta: metav1.ObjectMeta{Name: "b", Annotations: map[string]string{"orlop.dev/node-taints": "[]"}}}
		if note != "" {
			n.Annotations["orlop.dev/node-taints-set"] = note
		}
		return n
	}
	shared := func(ranges ...string) runtime.Object {
		n := node("").(*core.Node)
		n.Spec.PodCIDRs = ranges
		return n
	}
	kubelet := &user.DefaultInfo{Name: "system:node:b", Groups: []string{"system:nodes"}}
	nodes := schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	forged := `[{"key":"dedicated","effect":"NoSchedule"}]`
	for _, c := range []struct {
		name          string
		who           user.Info
		before, after runtime.Object
		resource      schema.GroupVersionResource
		part          string
		how           admission.Operation
		ok            bool
	}{
		{"makes its Node", kubelet, nil, node(""), nodes, "", admission.Create, true},
		{"makes it with a note", kubelet, nil, node(forged), nodes, "", admission.Create, false},
		{"changes something else", kubelet, node("[]"), node("[]"), nodes, "", admission.Update, true},
		{"tells its status", kubelet, node("[]"), node("[]"), nodes, "status", admission.Update, true},
		{"forges the note", kubelet, node(""), node(forged), nodes, "", admission.Update, false},
		{"forges it with its status", kubelet, node("[]"), node(forged), nodes, "status", admission.Update, false},
		{"takes it away", kubelet, node(forged), node(""), nodes, "", admission.Update, false},
		{"makes it with a share", kubelet, nil, shared("10.244.0.0/16"), nodes, "", admission.Create, false},
		{"takes a share", kubelet, shared(), shared("192.0.2.0/24"), nodes, "", admission.Update, false},
		{"takes one with its status", kubelet, shared(), shared("192.0.2.0/24"), nodes, "status", admission.Update, false},
		{"keeps its share", kubelet, shared("10.244.1.0/24"), shared("10.244.1.0/24"), nodes, "status", admission.Update, true},
		{"the controller gives it one", &user.DefaultInfo{Name: "system:serviceaccount:kube-system:node-controller"}, shared(), shared("10.244.1.0/24"), nodes, "", admission.Update, true},
		{"deletes its Node", kubelet, node(""), nil, nodes, "", admission.Delete, true},
		{"another kind", kubelet, nil, node(forged), schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "", admission.Create, true},
		{"the control plane", &user.DefaultInfo{Name: "orlop:node-marks"}, node(""), node(forged), nodes, "", admission.Update, true},
	} {
		a := admission.NewAttributesRecord(c.after, c.before, schema.GroupVersionKind{}, "", "b", c.resource, c.part, c.how, nil, false, c.who)
		if err := (nodeAnnotations{}).Validate(t.Context(), a, nil); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
