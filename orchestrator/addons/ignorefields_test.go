package addons

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestIgnoredFields checks that fields which an autoscaler sets, and fields which the manifest
// ignores, are not reverted.
func TestIgnoredFields(t *testing.T) {
	owned := func(manager, subresource, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, Subresource: subresource, FieldsV1: &metav1.FieldsV1{Raw: []byte(fields)}}
	}
	const replicas = `{"f:spec":{"f:replicas":{}}}`
	for _, c := range []struct {
		name  string
		leave string
		owner *metav1.ManagedFieldsEntry
		want  string
	}{
		{"nobody", "", nil, "replicas 1, image a, ca ours"},
		{"an autoscaler", "", new(owned("kube-controller-manager", "scale", replicas)), "replicas <nil>, image a, ca ours"},
		{"another autoscaler", "", new(owned("keda-operator", "scale", replicas)), "replicas <nil>, image a, ca ours"},
		{"a custom resource's autoscaler", "", new(owned("scaler", "scale", `{"f:spec":{"f:ca":{}}}`)), "replicas 1, image a, ca <nil>"},
		{"kubectl scale", "", new(owned("kubectl", "scale", replicas)), "replicas 1, image a, ca ours"},
		{"kubectl edit", "", new(owned("kubectl-edit", "", replicas)), "replicas 1, image a, ca ours"},
		{"a controller that sets its status", "", new(owned("kube-controller-manager", "status", `{"f:status":{"f:replicas":{}}}`)), "replicas 1, image a, ca ours"},
		{"fields that cannot be read", "", new(owned("keda-operator", "scale", `[]`)), "replicas 1, image a, ca ours"},
		{"left", "spec.replicas, spec.ca", nil, "replicas 3, image a, ca theirs"},
		{"left, and not there", "spec.image", nil, "replicas 1, image <nil>, ca ours"},
		{"left, and no field", "spec.none.deeper, spec.ca.deeper,, .", nil, "replicas 1, image a, ca ours"},
		{"what it is known by", "metadata.name, kind, metadata, apiVersion, metadata.labels", nil, "replicas 1, image a, ca ours"},
	} {
		body := parsed(t, "{kind: Deployment, apiVersion: apps/v1, metadata: {name: web, labels: {orlop.dev/addon: web}}, spec: {replicas: 1, image: a, ca: ours}}")
		if c.leave != "" {
			body.SetAnnotations(map[string]string{ignoreAnnotation: c.leave})
		}
		live := parsed(t, "{kind: Deployment, apiVersion: apps/v1, metadata: {name: other, labels: {}}, spec: {replicas: 3, ca: theirs}}")
		if c.owner != nil {
			live.SetManagedFields([]metav1.ManagedFieldsEntry{*c.owner})
		}
		before := fmt.Sprint(body.Object)
		got := withoutIgnored(body, live)
		spec := got.Object["spec"].(map[string]any)
		if said := fmt.Sprintf("replicas %v, image %v, ca %v", spec["replicas"], spec["image"], spec["ca"]); said != c.want {
			t.Errorf("%s: %s, want %s", c.name, said, c.want)
		}
		if got.GetName() != "web" || got.GetKind() != "Deployment" || got.GetLabels()[Label] != "web" || fmt.Sprint(body.Object) != before {
			t.Errorf("%s: it is %v", c.name, got.Object)
		}
		if first := withoutIgnored(body, nil); first != body {
			t.Errorf("%s: when it is made, it is %v", c.name, first.Object)
		}
	}
}
