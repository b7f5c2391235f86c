package addons

import (
	"context"
	"errors"
	"fmt"
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientfake "k8s.io/client-go/kubernetes/fake"
)

// TestIgnoredFields checks that an apply does not revert fields that an autoscaler sets, and fields
// that the annotation of the manifest names.
func TestIgnoredFields(t *testing.T) {
	owned := func(manager, subresource, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, Subresource: subresource, FieldsV1: &metav1.FieldsV1{Raw: []byte(fields)}}
	}
	const replicas = `{"f:spec":{"f:replicas":{}}}`
	const scaled = "an autoscaler scales it"
	for _, c := range []struct {
		name  string
		leave string // the annotation; or scaled, if an autoscaler exists
		owner *metav1.ManagedFieldsEntry
		want  string
	}{
		{"an autoscaler that was deleted", "", new(owned("kube-controller-manager", "scale", replicas)), "replicas 1, image a, ca ours"},
		{"an autoscaler of this program that was deleted", "", new(owned(ownManager(), "scale", replicas)), "replicas 1, image a, ca ours"},
		{"another program without an autoscaler", "", new(owned("scaler", "scale", replicas)), "replicas <nil>, image a, ca ours, note Deployment web: spec.replicas is left to scaler, which has set it; kubectl scale, to another number, returns it to the manifest"},
		{"no other manager", "", nil, "replicas 1, image a, ca ours"},
		{"an autoscaler", scaled, new(owned("kube-controller-manager", "scale", replicas)), "replicas <nil>, image a, ca ours"},
		{"another autoscaler", scaled, new(owned("keda-operator", "scale", replicas)), "replicas <nil>, image a, ca ours"},
		{"a custom resource's autoscaler", scaled, new(owned("scaler", "scale", `{"f:spec":{"f:ca":{}}}`)), "replicas 1, image a, ca <nil>"},
		{"kubectl scale", "", new(owned("kubectl", "scale", replicas)), "replicas 1, image a, ca ours"},
		{"kubectl edit", "", new(owned("kubectl-edit", "", replicas)), "replicas 1, image a, ca ours"},
		{"a controller that sets its status", "", new(owned("kube-controller-manager", "status", `{"f:status":{"f:replicas":{}}}`)), "replicas 1, image a, ca ours"},
		{"fields that cannot be read", "", new(owned("keda-operator", "scale", `[]`)), "replicas 1, image a, ca ours"},
		{"fields that the annotation names", "spec.replicas, spec.ca", nil, "replicas 3, image a, ca theirs"},
		{"a field that the existing object lacks", "spec.image", nil, "replicas 1, image <nil>, ca ours"},
		{"names that are no fields", "spec.none.deeper, spec.ca.deeper,, .", nil, "replicas 1, image a, ca ours"},
		{"fields that identify the object", "metadata.name, kind, metadata, apiVersion, metadata.labels", nil, "replicas 1, image a, ca ours"},
	} {
		body := parsed(t, "{kind: Deployment, apiVersion: apps/v1, metadata: {name: web, labels: {orlop.dev/addon: web}}, spec: {replicas: 1, image: a, ca: ours}}")
		if c.leave != "" && c.leave != scaled {
			body.SetAnnotations(map[string]string{ignoreAnnotation: c.leave})
		}
		live := parsed(t, "{kind: Deployment, apiVersion: apps/v1, metadata: {name: other, labels: {}}, spec: {replicas: 3, ca: theirs}}")
		if c.owner != nil {
			live.SetManagedFields([]metav1.ManagedFieldsEntry{*c.owner})
		}
		before := fmt.Sprint(body.Object)
		exists := func(context.Context, Item) (bool, error) { return c.leave == scaled, nil }
		fields, note, err := autoscaledFields(t.Context(), Object{Item: Item{Kind: "Deployment", Name: "web"}, Body: body}, live, exists)
		if err != nil {
			t.Fatal(err)
		}
		if note != "" {
			note = ", note " + note
		}
		got := withoutIgnored(body, live, fields)
		spec := got.Object["spec"].(map[string]any)
		if said := fmt.Sprintf("replicas %v, image %v, ca %v", spec["replicas"], spec["image"], spec["ca"]) + note; said != c.want {
			t.Errorf("%s: %s, want %s", c.name, said, c.want)
		}
		if got.GetName() != "web" || got.GetKind() != "Deployment" || got.GetLabels()[Label] != "web" || fmt.Sprint(body.Object) != before {
			t.Errorf("%s: a field that identifies the object, or the manifest, was changed: %v", c.name, got.Object)
		}
		if first := withoutIgnored(body, nil, nil); first != body {
			t.Errorf("%s: a new object differs from the manifest: %v", c.name, first.Object)
		}
	}
}

// TestAutoscalerExists checks that an autoscaler counts for the object that it names, and that a
// pass returns the number of replicas to the manifest when the autoscaler is deleted.
func TestAutoscalerExists(t *testing.T) {
	autoscaler := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "any"}, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
		ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1beta2", Kind: "Deployment", Name: "web"}}}
	client := clientfake.NewClientset(autoscaler)
	m := &manager{client: client}
	for item, want := range map[Item]bool{
		{Group: "apps", Kind: "Deployment", Namespace: "web", Name: "web"}:   true,
		{Group: "apps", Kind: "Deployment", Namespace: "web", Name: "other"}: false,
		{Group: "apps", Kind: "Deployment", Namespace: "two", Name: "web"}:   false,
		{Group: "apps", Kind: "StatefulSet", Namespace: "web", Name: "web"}:  false,
		{Group: "x.io", Kind: "Deployment", Namespace: "web", Name: "web"}:   false,
		{Group: "apps", Kind: "Deployment", Name: "web"}:                     false,
	} {
		if got, err := m.autoscalerExists(t.Context(), item); err != nil || got != want {
			t.Errorf("%+v: an autoscaler exists: %t, %v", item, got, err)
		}
	}
	s := newSite(t)
	s.scaled = m.autoscalerExists
	s.addon.Manifests = []string{"{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {replicas: 1}}"}
	s.run()
	live := s.objects[key{"apps", "Deployment", "web", "web"}]
	replicas := func() any {
		return s.objects[key{"apps", "Deployment", "web", "web"}].Object["spec"].(map[string]any)["replicas"]
	}
	live.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: upstreamManager, Subresource: "scale", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:spec":{"f:replicas":{}}}`)}}})
	s.now = s.now.Add(reapplyInterval)
	s.expect("the autoscaler owns the number of replicas", "apply Deployment web/web", 0, 0)
	if got := replicas(); got != nil {
		t.Errorf("the applied number of replicas is %v", got)
	}
	if err := client.AutoscalingV2().HorizontalPodAutoscalers("web").Delete(t.Context(), "any", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.objects[key{"apps", "Deployment", "web", "web"}].SetManagedFields(live.GetManagedFields())
	s.now = s.now.Add(reapplyInterval)
	s.expect("the autoscaler is deleted", "apply Deployment web/web", 0, 0)
	if got := replicas(); got != int64(1) {
		t.Errorf("the applied number of replicas is %v", got)
	}
	s.scaled = func(context.Context, Item) (bool, error) { return false, errors.New("unknown") }
	s.objects[key{"apps", "Deployment", "web", "web"}].SetManagedFields(live.GetManagedFields())
	if _, err := s.autoscaledFields(t.Context(), Object{}, live); err == nil {
		t.Error("the error of the search for autoscalers is lost")
	}
}
