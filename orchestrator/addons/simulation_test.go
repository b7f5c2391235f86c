package addons

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// fake is a cluster of objects that become healthy when the test decides. It logs all operations.
type fake struct {
	objects map[key]*unstructured.Unstructured
	refused map[string]error // by Item.String
	asleep  map[string]bool  // objects with stopped controllers
	stuck   map[string]bool  // objects with a finalizer
	done    []string
	count   int
}

func newFake() *fake {
	return &fake{objects: map[key]*unstructured.Unstructured{}, refused: map[string]error{}, asleep: map[string]bool{}, stuck: map[string]bool{}}
}

func (f *fake) get(_ context.Context, i Item) (*unstructured.Unstructured, error) {
	if o := f.objects[i.key()]; o != nil {
		return o.DeepCopy(), nil
	}
	return nil, nil
}

func (f *fake) apply(_ context.Context, i Item, body *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if err := f.refused[i.String()]; err != nil {
		return nil, err
	}
	f.count++
	o := body.DeepCopy()
	o.SetUID(types.UID(strconv.Itoa(f.count)))
	if before := f.objects[i.key()]; before != nil {
		o.SetUID(before.GetUID())
		if status := before.Object["status"]; status != nil {
			o.Object["status"] = status
		}
	}
	if i.Kind == "Deployment" {
		o.SetGeneration(1)
	}
	o.SetResourceVersion(strconv.Itoa(f.count))
	f.runControllers(i, o)
	f.objects[i.key()] = o
	f.done = append(f.done, "apply "+i.String())
	return o.DeepCopy(), nil
}

// runControllers simulates the controllers of the kinds in the tests.
func (f *fake) runControllers(i Item, o *unstructured.Unstructured) {
	if f.asleep[i.String()] {
		return
	}
	condition := map[string]string{"CustomResourceDefinition": "Established", "Job": "Complete"}[i.Kind]
	if condition != "" {
		conditions := []any{map[string]any{"type": condition, "status": "True"}}
		_ = unstructured.SetNestedSlice(o.Object, conditions, "status", "conditions")
	}
	if i.Kind == "Deployment" {
		_ = unstructured.SetNestedMap(o.Object, map[string]any{"observedGeneration": int64(1), "replicas": int64(1), "updatedReplicas": int64(1), "availableReplicas": int64(1)}, "status")
	}
}

// wake starts the controllers of an object.
func (f *fake) wake(name string) {
	delete(f.asleep, name)
	for k, o := range f.objects {
		i := Item{Group: k.group, Kind: k.kind, Namespace: k.namespace, Name: k.name}
		if i.String() == name {
			f.runControllers(i, o)
		}
	}
}

func (f *fake) delete(_ context.Context, i Item, uid types.UID) error {
	o := f.objects[i.key()]
	if o == nil {
		return nil
	}
	if o.GetUID() != uid {
		return apierrors.NewConflict(schema.GroupResource{}, i.Name, fmt.Errorf("another one"))
	}
	f.done = append(f.done, "delete "+i.String())
	if f.stuck[i.String()] {
		now := metav1.Now()
		o.SetDeletionTimestamp(&now)
		o.SetFinalizers([]string{"example.com/wait"})
		return nil
	}
	delete(f.objects, i.key())
	return nil
}

func (f *fake) hasResources(_ context.Context, definition *unstructured.Unstructured) (bool, error) {
	for k := range f.objects {
		if k.kind+"s."+k.group == strings.ToLower(definition.GetName()) || strings.EqualFold(k.kind+"s."+k.group, definition.GetName()) {
			return true, nil
		}
	}
	return false, nil
}

// known returns a kind as an API server without custom resources knows it.
func known(gvk schema.GroupVersionKind) (Kind, bool) {
	if isCustom(Item{Group: gvk.Group}) {
		return Kind{}, false
	}
	cluster := []string{"Namespace", "ClusterRole", "CustomResourceDefinition", "ValidatingWebhookConfiguration"}
	return Kind{Resource: strings.ToLower(gvk.Kind) + "s", Namespaced: !slices.Contains(cluster, gvk.Kind)}, true
}

// chart is a possible output of `helm template`.
const chart = `---
# Source: web/templates/job.yaml
apiVersion: batch/v1
kind: Job
metadata:
  name: migrate
  annotations: {helm.sh/hook: "pre-install,pre-upgrade", helm.sh/hook-weight: "5"}
spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: x}]}}}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: migrate
  annotations: {helm.sh/hook: "pre-install,pre-upgrade", helm.sh/hook-weight: "-5"}
---
apiVersion: batch/v1
kind: Job
metadata: {name: welcome, annotations: {helm.sh/hook: post-install}}
---
apiVersion: v1
kind: Pod
metadata: {name: try, annotations: {helm.sh/hook: test}}
---
# Source: web/templates/empty.yaml
---
apiVersion: web.example.com/v1
kind: Site
metadata: {name: home}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec: {replicas: 1}
---
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: ConfigMap
  metadata: {name: settings}
- apiVersion: v1
  kind: PersistentVolumeClaim
  metadata: {name: data}
  spec: {volumeName: v}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: sites.web.example.com}
spec:
  group: web.example.com
  names: {kind: Site, plural: sites}
  scope: Namespaced
  versions: [{name: v1, served: true, storage: true}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: web}
---
apiVersion: v1
kind: Namespace
metadata: {name: web}
`

// site is an add-on in a fake cluster.
type site struct {
	*testing.T
	*fake
	reconciler
	record Record
	addon  nodespec.Addon
	now    time.Time
}

func newSite(t *testing.T) *site {
	f := newFake()
	return &site{
		T: t, fake: f, reconciler: reconciler{name: "web", as: f, remover: f, applied: map[key]appliedObject{}}, now: time.Unix(1e9, 0),
		addon: nodespec.Addon{Name: "web", Namespace: "web", Manifests: []string{chart}},
	}
}

// run makes a pass, and returns the operations and the outcome.
func (s *site) run() (string, outcome) {
	s.Helper()
	s.done = nil
	s.now = s.now.Add(10 * time.Second)
	save := func(r Record) error {
		s.record = r
		return nil
	}
	r, out, err := s.pass(context.Background(), Read(s.addon, nil, known), s.record, s.now, save)
	if err != nil {
		s.Fatal(err)
	}
	s.record = r
	return strings.Join(s.done, "; "), out
}

// expect makes a pass, and checks its operations (done), and the numbers of its problems and waits.
func (s *site) expect(what, done string, problems, waits int) {
	s.Helper()
	got, out := s.run()
	if got != done || len(out.problems) != problems || len(out.waits) != waits {
		s.Errorf("%s:\n did %s\nwant %s\nproblems %q, waits %q, want %d and %d", what, got, done, out.problems, out.waits, problems, waits)
	}
}

// TestLife covers the life of a chart: it is applied in order, repaired, changed, and deleted in
// order.
func TestLife(t *testing.T) {
	s := newSite(t)
	for _, name := range []string{"CustomResourceDefinition sites.web.example.com", "Job web/migrate", "Deployment web/web"} {
		s.asleep[name] = true
	}
	s.expect("namespaces, then definitions", "apply Namespace web; apply CustomResourceDefinition sites.web.example.com", 0, 1)
	s.wake("CustomResourceDefinition sites.web.example.com")
	s.expect("the hooks before the install, by weight", "apply ServiceAccount web/migrate; apply Job web/migrate", 0, 1)
	s.wake("Job web/migrate")
	s.expect("everything else; the claim waits", "apply ConfigMap web/settings; apply PersistentVolumeClaim web/data; apply Deployment web/web; "+
		"apply Site web/home; apply ValidatingWebhookConfiguration web", 0, 2)
	claim := s.objects[key{"", "PersistentVolumeClaim", "web", "data"}]
	_ = unstructured.SetNestedField(claim.Object, "Bound", "status", "phase")
	s.wake("Deployment web/web")
	s.expect("the hooks after the install", "apply Job web/welcome", 0, 0)
	s.expect("no operation is left", "", 0, 0)

	delete(s.objects, key{"", "ConfigMap", "web", "settings"})
	// as Kubernetes deletes a Job after ttlSecondsAfterFinished
	delete(s.objects, key{"batch", "Job", "web", "migrate"})
	s.objects[key{"", "Namespace", "", "web"}].SetResourceVersion("other")
	s.expect("lost objects are created again, hooks do not run again", "apply Namespace web; apply ConfigMap web/settings", 0, 0)
	s.now = s.now.Add(reapplyInterval)
	if done, _ := s.run(); strings.Count(done, "apply") != 7 {
		t.Errorf("after reapplyInterval: %s; want 7 objects applied again", done)
	}

	s.addon.Manifests = []string{strings.NewReplacer("name: settings", "name: options", "{replicas: 1}", "{replicas: 1, paused: true}").Replace(chart)}
	s.expect("hooks run again for another text", "delete ServiceAccount web/migrate", 0, 1)
	s.expect("the hooks run in their order", "apply ServiceAccount web/migrate; apply Job web/migrate; apply ConfigMap web/options; apply Deployment web/web; "+
		"delete ConfigMap web/settings", 0, 1)
	s.expect("the unwanted objects are deleted", "", 0, 0)
	if s.record.Finished != Read(s.addon, nil, known).Digest || len(s.record.Inventory) != 10 {
		t.Errorf("record %+v", s.record)
	}

	s.addon.Manifests = nil
	s.stuck["Site web/home"] = true
	s.expect("custom resources are deleted first", "delete Site web/home", 0, 1)
	s.expect("the other deletions wait for them", "", 0, 1)
	delete(s.objects, key{"web.example.com", "Site", "web", "home"})
	s.objects[key{"web.example.com", "Site", "web", "foreign"}] = &unstructured.Unstructured{Object: map[string]any{}}
	s.expect("then webhooks", "delete ValidatingWebhookConfiguration web", 0, 1)
	s.expect("then the other objects in the reverse order", "delete Job web/welcome; delete Job web/migrate; delete Deployment web/web; delete ConfigMap web/options; "+
		"delete ServiceAccount web/migrate", 0, 5)
	s.expect("objects with data stay", "", 0, 0)
	var kept []string
	for _, k := range s.record.Orphaned {
		kept = append(kept, k.Object)
	}
	if want := []string{"PersistentVolumeClaim web/data", "Namespace web", "CustomResourceDefinition sites.web.example.com"}; !slices.Equal(kept, want) || len(s.record.Inventory) > 0 {
		t.Errorf("orphaned %q, want %q; inventory %v", kept, want, s.record.Inventory)
	}
}

// TestHooksThatHoldData checks that an object that holds data of others is not deleted in order to
// run a hook again.
func TestHooksThatHoldData(t *testing.T) {
	s := newSite(t)
	hook := func(text string) string {
		return strings.ReplaceAll(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, annotations: {helm.sh/hook: "pre-install,pre-upgrade", text: TEXT}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: sites.web.example.com, annotations: {helm.sh/hook: "pre-install,pre-upgrade"}}
spec: {group: web.example.com, names: {kind: Site, plural: sites}, scope: Namespaced, versions: [{name: v1, served: true, storage: true}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: kept, annotations: {helm.sh/hook: "pre-install,pre-upgrade", helm.sh/resource-policy: keep}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: again, annotations: {helm.sh/hook: "pre-install,pre-upgrade"}}
`, "TEXT", text)
	}
	s.addon.Manifests = []string{hook("one")}
	for range 4 {
		s.run()
		if claim := s.objects[key{"", "PersistentVolumeClaim", "web", "data"}]; claim != nil {
			_ = unstructured.SetNestedField(claim.Object, "Bound", "status", "phase")
		}
	}
	s.objects[key{"web.example.com", "Site", "web", "home"}] = &unstructured.Unstructured{Object: map[string]any{}}
	s.addon.Manifests = []string{hook("two")}
	all := ""
	for range 6 {
		done, _ := s.run()
		all += done + "; "
		if claim := s.objects[key{"", "PersistentVolumeClaim", "web", "data"}]; claim != nil {
			_ = unstructured.SetNestedField(claim.Object, "Bound", "status", "phase")
		}
	}
	if strings.Count(all, "delete") != 1 || !strings.Contains(all, "delete ConfigMap web/again") {
		t.Errorf("operations %s; want a single delete, of ConfigMap web/again", all)
	}
	if claim := s.objects[key{"", "PersistentVolumeClaim", "web", "data"}]; claim.GetAnnotations()["text"] != "two" {
		t.Errorf("the claim was not applied with its new text: %v", claim.GetAnnotations())
	}
}

// TestClaimOfHook checks that a claim that is a hook does not delay the next hook, which uses the
// claim. With most classes, a claim becomes bound only after its consumer exists.
func TestClaimOfHook(t *testing.T) {
	s := newSite(t)
	s.addon.Manifests = []string{`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, annotations: {helm.sh/hook: pre-install, helm.sh/hook-weight: "-5"}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: fill, annotations: {helm.sh/hook: pre-install}}
`}
	s.expect("the claim and its consumer", "apply PersistentVolumeClaim web/data; apply Job web/fill", 0, 0)
}

// TestRightsPending checks that an object which is rejected because its rights are new does not
// count as applied, so the objects that it replaces stay.
func TestRightsPending(t *testing.T) {
	s := newSite(t)
	s.addon.Manifests = []string{"{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}}"}
	s.expect("the former manifests", "apply Deployment web/web", 0, 0)
	s.addon.Manifests = []string{"{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: web}}"}
	s.refused["StatefulSet web/web"] = apierrors.NewForbidden(schema.GroupResource{Group: "apps", Resource: "statefulsets"}, "web", fmt.Errorf("not stated"))
	s.granted = s.now.Add(9 * time.Second)
	s.expect("the new rights may not be effective yet", "", 0, 1)
	s.expect("the new rights are still missing", "", 1, 0)
	delete(s.refused, "StatefulSet web/web")
	if done, _ := s.run(); !strings.HasPrefix(done, "apply StatefulSet web/web; delete Deployment web/web") {
		t.Errorf("did %s", done)
	}
}

// TestRefusals checks that the add-on does not take over objects of others, and that a rejected
// object is reported and does not prevent the application of the others.
func TestRefusals(t *testing.T) {
	s := newSite(t)
	s.addon.Manifests = []string{`
apiVersion: v1
kind: ConfigMap
metadata: {name: there}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: others}
---
apiVersion: v1
kind: Secret
metadata: {name: word}
stringData: {word: correct-horse}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: good}
---
apiVersion: example.com/v1
kind: Unknown
metadata: {name: u}
`}
	there, others := &unstructured.Unstructured{Object: map[string]any{}}, &unstructured.Unstructured{Object: map[string]any{}}
	others.SetLabels(map[string]string{Label: "other"})
	s.objects[key{"", "ConfigMap", "web", "there"}], s.objects[key{"", "ConfigMap", "web", "others"}] = there, others
	s.refused["Secret web/word"] = apierrors.NewBadRequest("correct-horse is no good")
	s.refused["Deployment web/web"] = apierrors.NewForbidden(schema.GroupResource{Group: "apps", Resource: "deployments"}, "web", fmt.Errorf("not stated"))
	done, out := s.run()
	if done != "apply ConfigMap web/good" {
		t.Errorf("did %s", done)
	}
	for _, want := range []string{
		"Unknown u: the API server does not know Unknown in example.com/v1",
		"Secret web/word is refused: BadRequest (message omitted, because it may show the Secret)",
		"ConfigMap web/others: belongs to the add-on other",
		"ConfigMap web/there: exists already and belongs to no add-on; remove it from the manifests, or assign it to this add-on: kubectl label -n web configmaps there orlop.dev/addon=web",
		`Deployment web/web is refused: deployments.apps "web" is forbidden: not stated`,
	} {
		if !slices.Contains(out.problems, want) {
			t.Errorf("missing: %s\nin %q", want, out.problems)
		}
	}
	// The API server may not know a right that was granted a moment ago.
	s.granted = s.now.Add(9 * time.Second)
	if _, out := s.run(); len(out.waits) != 1 {
		t.Errorf("waits %q", out.waits)
	}
	// A failure prevents the deletion of unwanted objects: they may be the objects that still work.
	s.record.Inventory = append(s.record.Inventory, Item{Version: "v1", Kind: "ConfigMap", Resource: "configmaps", Namespace: "web", Name: "old"})
	if done, _ := s.run(); strings.Contains(done, "delete") {
		t.Errorf("did %s", done)
	}
	// Objects of other owners are not deleted with the add-on.
	s.addon.Manifests = nil
	s.run()
	if s.objects[key{"", "ConfigMap", "web", "there"}] == nil || s.objects[key{"", "ConfigMap", "web", "others"}] == nil || len(s.record.Inventory) > 1 {
		t.Errorf("left %v, inventory %v", s.objects, s.record.Inventory)
	}
}

// TestUnavailable checks that a pass ends with an error if the API server does not answer, and that
// the record stays complete.
func TestUnavailable(t *testing.T) {
	s := newSite(t)
	s.addon.Manifests = []string{"{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}"}
	s.refused["ConfigMap web/a"] = fmt.Errorf("connection refused")
	r, _, err := s.pass(context.Background(), Read(s.addon, nil, known), Record{}, s.now, func(Record) error { return nil })
	if err == nil || len(r.Inventory) != 1 {
		t.Errorf("%v, inventory %v", err, r.Inventory)
	}
}
