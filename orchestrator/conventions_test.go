package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

// conventions checks that the API follows the conventions of Kubernetes. Upstream implements them;
// the test shows that our API server has all parts of the implementation.
func conventions(ctx context.Context, t *testing.T, m machine, admin kubernetes.Interface) {
	t.Run("accounts", func(t *testing.T) { accounts(ctx, t, admin) })
	t.Run("defaults", func(t *testing.T) { defaults(ctx, t, admin) })
	t.Run("validation", func(t *testing.T) { validation(ctx, t, admin) })
	t.Run("conflict", func(t *testing.T) { conflict(ctx, t, admin) })
	t.Run("watch", func(t *testing.T) { watches(ctx, t, admin) })
	t.Run("versions", func(t *testing.T) { versions(ctx, t, admin) })
	t.Run("own kinds", func(t *testing.T) { ownKinds(ctx, t, m, admin) })
}

// accounts checks that a namespace gets its default account within 10 s, without a Secret, and that
// a pod gets the token of the account.
func accounts(ctx context.Context, t *testing.T, admin kubernetes.Interface) {
	const namespace = "accounts"
	if _, err := admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	soon, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	waitAccount(soon, t, admin, namespace)
	secrets, err := admin.CoreV1().Secrets(namespace).List(ctx, metav1.ListOptions{})
	if err != nil || len(secrets.Items) != 0 {
		t.Errorf("a new namespace has %d secrets, want none: %v", len(secrets.Items), err)
	}
	pod, err := admin.CoreV1().Pods(namespace).Create(ctx, plainPod("p"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	projected := slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool { return s.ServiceAccountToken != nil })
	})
	if pod.Spec.ServiceAccountName != "default" || !projected {
		t.Errorf("account %q, token in a volume: %t", pod.Spec.ServiceAccountName, projected)
	}
}

func defaults(ctx context.Context, t *testing.T, admin kubernetes.Interface) {
	pod, err := admin.CoreV1().Pods("default").Create(ctx, plainPod("dry"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		t.Fatal(err)
	}
	if pod.Spec.RestartPolicy != corev1.RestartPolicyAlways || pod.Spec.DNSPolicy != corev1.DNSClusterFirst || pod.Spec.SchedulerName != "default-scheduler" {
		t.Errorf("the defaults of a pod are not set: %+v", pod.Spec)
	}
	if _, err := admin.CoreV1().Pods("default").Get(ctx, "dry", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the object of a dry run exists: %v", err)
	}
}

func validation(ctx context.Context, t *testing.T, admin kubernetes.Interface) {
	pod := plainPod("twice")
	pod.Spec.Containers = append(pod.Spec.Containers, pod.Spec.Containers[0])
	_, err := admin.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.containers[1].name") {
		t.Errorf("%v, want 422 that names the field", err)
	}
}

func conflict(ctx context.Context, t *testing.T, admin kubernetes.Interface) {
	maps := admin.CoreV1().ConfigMaps("default")
	first, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "conflict"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	second := first.DeepCopy()
	second.Data = map[string]string{"a": "1"}
	if _, err := maps.Update(ctx, second, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Update(ctx, first, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("an update with an outdated resource version: %v, want 409", err)
	}
}

// watches checks that a watch from the end of a list receives every later change, once and in
// order.
func watches(ctx context.Context, t *testing.T, admin kubernetes.Interface) {
	const changes = 100
	maps := admin.CoreV1().ConfigMaps("default")
	list, err := maps.List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := maps.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion, LabelSelector: "watched=yes"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for i := range changes {
		for _, seen := range []string{"yes", "no"} { // the watch selects "yes"
			object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("watched-%s-%d", seen, i), Labels: map[string]string{"watched": seen}}}
			if _, err := maps.Create(ctx, object, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range changes {
		select {
		case e := <-w.ResultChan():
			if o, ok := e.Object.(*corev1.ConfigMap); !ok || e.Type != watch.Added || o.Name != fmt.Sprintf("watched-yes-%d", i) {
				t.Fatalf("event %d: %s %T %+v", i, e.Type, e.Object, e.Object)
			}
		case <-ctx.Done():
			t.Fatalf("after %d of %d events: %v", i, changes, ctx.Err())
		}
	}
}

// versions checks that a client can write an object in one version of an API and read it in another
// version, and that the object is unchanged when the client reads it in the first version.
func versions(ctx context.Context, t *testing.T, admin kubernetes.Interface) {
	percent := int32(70)
	written := &autoscalingv1.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "h"},
		Spec: autoscalingv1.HorizontalPodAutoscalerSpec{
			MaxReplicas: 3, TargetCPUUtilizationPercentage: &percent,
			ScaleTargetRef: autoscalingv1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "d"},
		},
	}
	if _, err := admin.AutoscalingV1().HorizontalPodAutoscalers("default").Create(ctx, written, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	v2, err := admin.AutoscalingV2().HorizontalPodAutoscalers("default").Get(ctx, "h", metav1.GetOptions{})
	if err != nil || len(v2.Spec.Metrics) != 1 || v2.Spec.Metrics[0].Resource == nil || *v2.Spec.Metrics[0].Resource.Target.AverageUtilization != percent {
		t.Fatalf("the object as v2: %+v, %v", v2, err)
	}
	v1, err := admin.AutoscalingV1().HorizontalPodAutoscalers("default").Get(ctx, "h", metav1.GetOptions{})
	if err != nil || *v1.Spec.TargetCPUUtilizationPercentage != percent || v1.Spec.ScaleTargetRef != written.Spec.ScaleTargetRef {
		t.Errorf("the object as v1 is not as written: %+v, %v", v1, err)
	}
}

// ownKinds checks that the objects of a custom kind can be discovered and selected by label, have a
// status, and are defaulted and validated like those of any other kind.
func ownKinds(ctx context.Context, t *testing.T, m machine, admin kubernetes.Interface) {
	config := m.config(t, "admin", "orlop:cluster-admins")
	definitions := apiextensions.NewForConfigOrDie(config).ApiextensionsV1().CustomResourceDefinitions()
	text := apiextensionsv1.JSONSchemaProps{Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"small"`)}, Enum: []apiextensionsv1.JSON{{Raw: []byte(`"small"`)}, {Raw: []byte(`"large"`)}}}
	preserve := true
	definition := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "boats.example.org"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.org", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "boats", Singular: "boat", Kind: "Boat", ListKind: "BoatList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
					"spec":   {Type: "object", Default: &apiextensionsv1.JSON{Raw: []byte(`{}`)}, Properties: map[string]apiextensionsv1.JSONSchemaProps{"size": text}},
					"status": {Type: "object", XPreserveUnknownFields: &preserve},
				}}},
			}},
		},
	}
	if _, err := definitions.Create(ctx, definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		d, err := definitions.Get(ctx, definition.Name, metav1.GetOptions{})
		return err == nil && slices.ContainsFunc(d.Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
			return c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
		}), nil
	})
	if err != nil {
		t.Fatalf("the kind is not established: %v", err)
	}
	var resources *metav1.APIResourceList
	var last error
	// another controller publishes the discovery
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
		resources, last = admin.Discovery().ServerResourcesForGroupVersion("example.org/v1")
		return last == nil && slices.ContainsFunc(resources.APIResources, func(r metav1.APIResource) bool { return r.Name == "boats" && r.Kind == "Boat" }), nil
	})
	if err != nil {
		t.Errorf("discovery: %+v, %v", resources, last)
	}
	boats := dynamic.NewForConfigOrDie(config).Resource(schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "boats"}).Namespace("default")
	for name, pool := range map[string]string{"one": "a", "two": "b"} {
		boat := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.org/v1", "kind": "Boat", "metadata": map[string]any{"name": name, "labels": map[string]any{"pool": pool}},
		}}
		made, err := boats.Create(ctx, boat, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if size, _, _ := unstructured.NestedString(made.Object, "spec", "size"); size != "small" {
			t.Errorf("default size %q", size)
		}
	}
	list, err := boats.List(ctx, metav1.ListOptions{LabelSelector: "pool=a"})
	if err != nil || len(list.Items) != 1 || list.Items[0].GetName() != "one" {
		t.Errorf("boats with the label pool=a: %+v, %v", list, err)
	}
	bad, err := json.Marshal(map[string]any{"spec": map[string]any{"size": "huge"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := boats.Patch(ctx, "one", types.MergePatchType, bad, metav1.PatchOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.size") {
		t.Errorf("an invalid size: %v, want 422 that names the field", err)
	}
	status := []byte(`{"status":{"conditions":[{"type":"Ready","status":"True"}]},"spec":{"size":"large"}}`)
	after, err := boats.Patch(ctx, "one", types.MergePatchType, status, metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
	conditions, _, _ := unstructured.NestedSlice(after.Object, "status", "conditions")
	if size, _, _ := unstructured.NestedString(after.Object, "spec", "size"); size != "small" || len(conditions) != 1 {
		t.Errorf("a patch of the subresource status must not change the spec: %v", after.Object)
	}
}

// endPods creates 30 pods that have ended. The returned function waits until only limit of them
// exist: the value of FinishedPods in the specification of the node. Upstream deletes the excess
// pods every 20 s.
func endPods(ctx context.Context, t *testing.T, admin kubernetes.Interface, limit int) (check func(t *testing.T)) {
	const namespace = "ended"
	if _, err := admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitAccount(ctx, t, admin, namespace)
	for i := range 30 {
		pod := plainPod(fmt.Sprintf("ended-%d", i))
		pod.Spec.SchedulerName = "nobody"
		pod, err := admin.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pod.Status.Phase = corev1.PodSucceeded
		if _, err := admin.CoreV1().Pods(namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return func(t *testing.T) {
		left := 0
		err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			list, err := admin.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
			left = len(list.Items)
			return err == nil && left == limit, nil
		})
		if err != nil {
			t.Errorf("of 30 ended pods, %d exist, want %d: %v", left, limit, err)
		}
	}
}
