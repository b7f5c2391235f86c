package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/orlop-os/orlop/orchestrator/addons"
	"github.com/orlop-os/orlop/pkg/artifact"
	"github.com/orlop-os/orlop/pkg/artifact/artifacttest"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// shopChart is a possible output of `helm template`: a custom resource definition with one
// resource, a role for the chart's own program, a list, and a test that is not run.
const shopChart = `---
# Source: shop/crds/orders.yaml
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: orders.shop.example.com}
spec:
  group: shop.example.com
  scope: Namespaced
  names: {kind: Order, plural: orders, singular: order, listKind: OrderList}
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
# Source: shop/templates/order.yaml
apiVersion: shop.example.com/v1
kind: Order
metadata: {name: first}
spec: {pieces: 3}
---
apiVersion: v1
kind: List
items:
  - apiVersion: v1
    kind: ConfigMap
    metadata: {name: shop, labels: {app.kubernetes.io/managed-by: Helm}}
    data: {color: blue}
  - apiVersion: v1
    kind: Service
    metadata: {name: shop}
    spec: {ports: [{port: 80}], selector: {app: shop}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: shop}
rules:
  - {apiGroups: [shop.example.com], resources: [orders], verbs: [get, list]}
---
apiVersion: v1
kind: Pod
metadata: {name: shop-test, annotations: {helm.sh/hook: test}}
spec: {containers: [{name: c, image: none.local/x}]}
`

// shop is the chart with exactly the rights that it needs.
func shop() nodespec.Addon {
	apply := []string{"get", "create", "patch"}
	return nodespec.Addon{
		Name: "shop", Namespace: "shop", Manifests: []string{shopChart},
		Rights: nodespec.AddonRights{Rules: []nodespec.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"configmaps", "services"}, Verbs: apply},
			{APIGroups: []string{"apiextensions.k8s.io"}, Resources: []string{"customresourcedefinitions"}, Verbs: apply},
			{APIGroups: []string{"shop.example.com"}, Resources: []string{"orders"}, Verbs: append(apply, "list")},
			{APIGroups: []string{"rbac.authorization.k8s.io"}, Resources: []string{"clusterroles"}, Verbs: apply},
		}},
	}
}

// configure gives the machine its add-ons, as machined does.
func (m machine) configure(t *testing.T, all ...nodespec.Addon) {
	t.Helper()
	if all == nil {
		all = []nodespec.Addon{}
	}
	content, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(m.dirs.Controllers, nodespec.Addons)
	write(t, path+".new", content)
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// scaledObject checks that the number of replicas belongs to the controller of autoscalers while
// there is an autoscaler, and then to the manifest again. apply gives the add-on a Deployment.
func scaledObject(ctx context.Context, t *testing.T, admin kubernetes.Interface, await func(string, func(context.Context) bool), apply func(deployment string)) {
	t.Helper()
	version := func(version string) {
		apply("{apiVersion: apps/v1, kind: Deployment, metadata: {name: scaled, annotations: {version: " + version + "}}, spec: {replicas: 1, selector: {matchLabels: {a: b}}, " +
			"template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: none.local/x}]}}}}")
	}
	deployment := func(version string, replicas int32) func(context.Context) bool {
		return func(ctx context.Context) bool {
			d, err := admin.AppsV1().Deployments("orlop-guest").Get(ctx, "scaled", metav1.GetOptions{})
			return err == nil && d.Annotations["version"] == version && *d.Spec.Replicas == replicas
		}
	}
	version("one")
	await("the Deployment has the number of its manifest", deployment("one", 1))
	autoscalers := admin.AutoscalingV2().HorizontalPodAutoscalers("orlop-guest")
	autoscaler := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: "scaled"}, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
		ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "scaled"}, MinReplicas: new(int32(2)), MaxReplicas: 3,
	}}
	if _, err := autoscalers.Create(ctx, autoscaler, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await("the autoscaler sets its minimum", deployment("one", 2))
	version("two")
	await("the new text is applied", func(ctx context.Context) bool { return deployment("two", 1)(ctx) || deployment("two", 2)(ctx) })
	if !deployment("two", 2)(ctx) {
		t.Error("an apply resets the number of replicas while the autoscaler exists")
	}
	if err := autoscalers.Delete(ctx, "scaled", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	version("three")
	await("without the autoscaler, the manifest sets the number", deployment("three", 1))
}

// addOns checks with the real API server that add-ons are applied, repaired, changed and deleted,
// and that they do not exceed their rights.
func addOns(ctx context.Context, t *testing.T, m machine, admin kubernetes.Interface) {
	records := admin.CoreV1().ConfigMaps(addons.Namespace)
	await := func(what string, good func(ctx context.Context) bool) {
		t.Helper()
		began := time.Now()
		err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) { return good(ctx), nil })
		t.Logf("%5.2fs %s", time.Since(began).Seconds(), what)
		if err != nil {
			all, _ := records.List(ctx, metav1.ListOptions{})
			for _, r := range all.Items {
				t.Logf("%s: %q", r.Name, r.Data)
			}
			t.Fatalf("%s: %v", what, err)
		}
	}
	state := func(name, phase, says string) {
		t.Helper()
		await(name+" is "+phase+" and says "+says, func(ctx context.Context) bool {
			r, err := records.Get(ctx, name, metav1.GetOptions{})
			return err == nil && r.Data["phase"] == phase && strings.Contains(r.Data["problems"], says)
		})
	}
	maps := admin.CoreV1().ConfigMaps("shop")
	color := func(want string) func(context.Context) bool {
		return func(ctx context.Context) bool {
			c, err := maps.Get(ctx, "shop", metav1.GetOptions{})
			return err == nil && c.Data["color"] == want
		}
	}

	// This add-on needs a newer API server than that of the test, which has version v0.0.0. So the
	// cluster has no object of the add-on and no rights for it.
	late := shop()
	late.Kubernetes = "9.1"
	m.configure(t, late)
	state("shop", "Failed", "needs Kubernetes >=9.1")
	if _, err := admin.CoreV1().Namespaces().Get(ctx, "shop", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the namespace of the rejected add-on: %v", err)
	}

	// Without a required right the API server rejects an object.
	less := shop()
	less.Rights.Rules = less.Rights.Rules[:3]
	m.configure(t, less)
	state("shop", "Failed", "ClusterRole shop")
	greedy := shop()
	greedy.Rights.Rules[2].Verbs = []string{"get", "create", "patch"}
	m.configure(t, greedy)
	state("shop", "Failed", "attempting to grant RBAC permissions not currently held")

	m.configure(t, shop())
	state("shop", "Ready", "")
	r, err := records.Get(ctx, "shop", metav1.GetOptions{})
	if err != nil || !strings.Contains(r.Data["notes"], "Pod shop/shop-test: hooks for test are not supported") || !strings.Contains(r.Data["rights"], "get, create, patch configmaps, services (core) in the whole cluster") {
		t.Errorf("the record of the add-on: %v, %q", err, r.Data)
	}
	orders := dynamic.NewForConfigOrDie(m.config(t, "admin", "orlop:cluster-admins")).Resource(schema.GroupVersionResource{Group: "shop.example.com", Version: "v1", Resource: "orders"}).Namespace("shop")
	order, err := orders.Get(ctx, "first", metav1.GetOptions{})
	if err != nil || order.GetManagedFields()[0].Manager != "orlop-addon/shop" {
		t.Errorf("order: %v %v", err, order)
	}

	// Deleted and changed objects are repaired.
	deleted := time.Now()
	if err := maps.Delete(ctx, "shop", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await("the deleted object is created again", color("blue"))
	if took := time.Since(deleted); took > 30*time.Second {
		t.Errorf("the deleted object was created again after %v", took)
	}
	modify(ctx, t, maps.Get, maps.Update, "shop", func(c *corev1.ConfigMap) { c.Data["color"] = "red" })
	await("the changed object is restored", color("blue"))

	// The document changes: a Service is no longer wanted.
	next := shop()
	next.Manifests = []string{strings.NewReplacer("blue", "green", "kind: Service", "kind: ConfigMap", "name: shop}\n    spec: {ports: [{port: 80}], selector: {app: shop}}", "name: other}").Replace(shopChart)}
	m.configure(t, next)
	await("the new manifests are applied", color("green"))
	await("the Service is gone", func(ctx context.Context) bool {
		_, err := admin.CoreV1().Services("shop").Get(ctx, "shop", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})

	// Another add-on is limited to its namespaces, and to its own objects. No other client can
	// create a namespace of its name.
	if _, err := admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "orlop-guest"}}, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("an administrator creates the namespace of an add-on: %v", err)
	}
	if err := admin.CoreV1().Namespaces().Delete(ctx, addons.Namespace, metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("an administrator deletes the records of add-ons: %v", err)
	}
	guest := nodespec.Addon{Name: "guest", Namespace: "orlop-guest", Namespaces: []string{"orlop-guest"}, Rights: nodespec.AddonRights{NamespaceAdmin: true}}
	guest.Manifests = []string{"{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: shop}}\n---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: kube-root-ca.crt}}"}
	m.configure(t, next, guest)
	state("guest", "Failed", "outside the scope: ConfigMap shop/x (another namespace)")
	guest.Manifests = []string{"{apiVersion: v1, kind: ConfigMap, metadata: {name: x}}"}
	m.configure(t, next, guest)
	state("guest", "Ready", "")
	// When the namespace exists, the controller manager adds the cluster's CA.
	await("its namespace has the CA", func(ctx context.Context) bool {
		_, err := admin.CoreV1().ConfigMaps("orlop-guest").Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		return err == nil
	})
	guest.Manifests = []string{"{apiVersion: v1, kind: ConfigMap, metadata: {name: kube-root-ca.crt}}"}
	m.configure(t, next, guest)
	state("guest", "Failed", "ConfigMap orlop-guest/kube-root-ca.crt: exists already and belongs to no add-on")
	guest.Manifests = []string{"{apiVersion: v1, kind: ConfigMap, metadata: {name: x}}"}
	m.configure(t, next, guest)
	state("guest", "Ready", "")

	scaledObject(ctx, t, admin, await, func(deployment string) {
		changed := guest
		changed.Manifests = append([]string{deployment}, guest.Manifests...)
		m.configure(t, next, changed)
	})
	m.configure(t, next, guest)
	await("the Deployment is gone", func(ctx context.Context) bool {
		_, err := admin.AppsV1().Deployments("orlop-guest").Get(ctx, "scaled", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})

	// The next manifests are in an artifact. While the artifact is missing, the objects of the
	// add-on stay as they are. The new manifests are applied when the artifact exists.
	shelf := artifacttest.Source{}
	sum := shelf.Put("{apiVersion: v1, kind: ConfigMap, metadata: {name: fetched}}")
	guest.Manifests = nil
	guest.Artifact = nodespec.Artifact{Name: "registry.example.com/guest@sha256:" + sum, SHA256: sum, Missing: "it was not fetched"}
	m.configure(t, next, guest)
	state("guest", "Failed", "artifact: it was not fetched")
	if _, err := admin.CoreV1().ConfigMaps("orlop-guest").Get(ctx, "x", metav1.GetOptions{}); err != nil {
		t.Errorf("an object of the previous manifests while the artifact is missing: %v", err)
	}
	if err := (artifact.Store{Dir: m.dirs.Addons, Group: os.Getgid()}).Fetch(ctx, sum, shelf); err != nil {
		t.Fatal(err)
	}
	guest.Artifact.Missing = ""
	m.configure(t, next, guest)
	state("guest", "Ready", "")
	if _, err := admin.CoreV1().ConfigMaps("orlop-guest").Get(ctx, "fetched", metav1.GetOptions{}); err != nil {
		t.Errorf("the artifact's object: %v", err)
	}
	if _, err := admin.CoreV1().ConfigMaps("orlop-guest").Get(ctx, "x", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("an object that is no longer wanted: %v", err)
	}

	// The add-ons are removed with their rights. The namespace stays, and so does a definition with
	// a resource of a user.
	order.SetName("second")
	order.SetLabels(nil)
	order.SetResourceVersion("")
	order.SetUID("")
	order.SetManagedFields(nil)
	if _, err := orders.Create(ctx, order, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	m.configure(t)
	await("the records of both add-ons are deleted", func(ctx context.Context) bool {
		all, err := records.List(ctx, metav1.ListOptions{LabelSelector: "orlop.dev/addon-record"})
		return err == nil && len(all.Items) == 0
	})
	left, err := admin.CoreV1().ConfigMaps("").List(ctx, metav1.ListOptions{LabelSelector: addons.Label})
	if err != nil || len(left.Items) > 0 {
		t.Errorf("objects that were not deleted: %v %v", err, left.Items)
	}
	roles, err := admin.RbacV1().ClusterRoles().List(ctx, metav1.ListOptions{LabelSelector: "orlop.dev/addon-rights"})
	if err != nil || len(roles.Items) > 0 {
		t.Errorf("remaining rights: %v %v", err, roles.Items)
	}
	if all, err := orders.List(ctx, metav1.ListOptions{}); err != nil || len(all.Items) != 1 || all.Items[0].GetName() != "second" {
		t.Errorf("orders: %v %v", err, all)
	}
	if _, err := admin.CoreV1().Namespaces().Get(ctx, "shop", metav1.GetOptions{}); err != nil {
		t.Errorf("the namespace of the removed add-on: %v", err)
	}

	// The component's identity may impersonate no other account.
	keeper := m.config(t, nodespec.AddonsUser)
	keeper.Impersonate.UserName = "system:serviceaccount:kube-system:generic-garbage-collector"
	if _, err := kubernetes.NewForConfigOrDie(keeper).CoreV1().Namespaces().List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("acting as another account: %v, want forbidden", err)
	}
}
