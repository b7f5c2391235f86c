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

// TestNodeAnnotations checks that no kubelet can change the annotations of a Node that belong to
// the control plane, and the pod ranges of a Node. All other changes are accepted.
func TestNodeAnnotations(t *testing.T) {
	node := func(taints string) runtime.Object {
		n := &core.Node{ObjectMeta: metav1.ObjectMeta{Name: "b", Annotations: map[string]string{"orlop.dev/node-taints": "[]"}}}
		if taints != "" {
			n.Annotations["orlop.dev/node-taints-set"] = taints
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
		caller        user.Info
		before, after runtime.Object
		resource      schema.GroupVersionResource
		subresource   string
		operation     admission.Operation
		ok            bool
	}{
		{"creates its Node", kubelet, nil, node(""), nodes, "", admission.Create, true},
		{"creates its Node with the annotation", kubelet, nil, node(forged), nodes, "", admission.Create, false},
		{"updates its Node without a change", kubelet, node("[]"), node("[]"), nodes, "", admission.Update, true},
		{"updates its status", kubelet, node("[]"), node("[]"), nodes, "status", admission.Update, true},
		{"adds the annotation", kubelet, node(""), node(forged), nodes, "", admission.Update, false},
		{"changes the annotation with its status", kubelet, node("[]"), node(forged), nodes, "status", admission.Update, false},
		{"removes the annotation", kubelet, node(forged), node(""), nodes, "", admission.Update, false},
		{"creates its Node with a pod range", kubelet, nil, shared("10.244.0.0/16"), nodes, "", admission.Create, false},
		{"adds a pod range", kubelet, shared(), shared("192.0.2.0/24"), nodes, "", admission.Update, false},
		{"adds a pod range with its status", kubelet, shared(), shared("192.0.2.0/24"), nodes, "status", admission.Update, false},
		{"updates its status with an unchanged pod range", kubelet, shared("10.244.1.0/24"), shared("10.244.1.0/24"), nodes, "status", admission.Update, true},
		{"the node controller adds a pod range", &user.DefaultInfo{Name: "system:serviceaccount:kube-system:node-controller"}, shared(), shared("10.244.1.0/24"), nodes, "", admission.Update, true},
		{"deletes its Node", kubelet, node(""), nil, nodes, "", admission.Delete, true},
		{"an object of another kind", kubelet, nil, node(forged), schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "", admission.Create, true},
		{"the control plane", &user.DefaultInfo{Name: "orlop:node-marks"}, node(""), node(forged), nodes, "", admission.Update, true},
	} {
		a := admission.NewAttributesRecord(c.after, c.before, schema.GroupVersionKind{}, "", "b", c.resource, c.subresource, c.operation, nil, false, c.caller)
		if err := (nodeAnnotations{}).Validate(t.Context(), a, nil); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
