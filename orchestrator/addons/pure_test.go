package addons

import (
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestRead checks which objects of manifests Read refuses, and which notes it adds.
func TestRead(t *testing.T) {
	a := nodespec.Addon{Name: "web", Namespace: "web", Namespaces: []string{"web", "jobs"}, Manifests: []string{chart, `
apiVersion: v1
kind: ConfigMapList
items:
- apiVersion: v1
  kind: ConfigMap
  metadata: {name: a, namespace: jobs, labels: {x: "y"}}
- apiVersion: v1
  kind: ConfigMap
  metadata: {name: b, namespace: elsewhere}
- apiVersion: rbac.authorization.k8s.io/v1
  kind: Role
  metadata: {name: "system:x"}
---
apiVersion: v1
kind: Secret
metadata: {name: s}
data: {count: 1}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: jobs}}
`}}
	w := Read(a, nil, known)
	for _, want := range []string{
		"ConfigMap jobs/a: occurs twice",
		"outside the scope: CustomResourceDefinition sites.web.example.com (cluster-scoped), ValidatingWebhookConfiguration web (cluster-scoped), " +
			"Namespace web (cluster-scoped), ConfigMap elsewhere/b (another namespace), Role web/system:x (reserved for the system)",
	} {
		if !slices.Contains(w.Refused, want) {
			t.Errorf("not refused: %s\nbut %q", want, w.Refused)
		}
	}
	if want := []string{"Pod web/try: hooks for test are not supported"}; !slices.Equal(w.Notes, want) {
		t.Errorf("notes %q", w.Notes)
	}
	for _, o := range w.Objects {
		if o.Body.GetLabels()[Label] != "web" || o.Body.GetNamespace() != o.Namespace {
			t.Errorf("%s: labels %v, namespace %q", o, o.Body.GetLabels(), o.Body.GetNamespace())
		}
		if o.Kind == "Secret" {
			if n, _, err := unstructured.NestedInt64(o.Body.Object, "data", "count"); n != 1 || err != nil {
				t.Errorf("an integer was changed into another type: %v", o.Body.Object["data"])
			}
		}
	}
	if !slices.ContainsFunc(w.Objects, func(o Object) bool { return o.Name == "a" && o.Body.GetLabels()["x"] == "y" }) {
		t.Error("the ConfigMap a has lost its label")
	}
	for text, want := range map[string]string{
		"a: [":            "manifests[0]: a document is not valid YAML",
		"- a":             "manifests[0]: a document is not a mapping",
		"kind: ConfigMap": "has no",
		"{apiVersion: v1, metadata: {name: correct-horse}}":                                       "has no kind",
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: a, labels: {version: 1.30, app: a}}}": "ConfigMap a: metadata.labels has a value that is not a string",
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: a, annotations: {count: 1}}}":         "ConfigMap a: metadata.annotations has a value that is not a string",
	} {
		w := Read(nodespec.Addon{Manifests: []string{text}}, nil, known)
		if len(w.Refused) != 1 || !strings.Contains(w.Refused[0], want) {
			t.Errorf("%q: %q, want %s", text, w.Refused, want)
		}
	}
}

// TestJudge checks the health of objects of each kind, and the text that explains it.
func TestJudge(t *testing.T) {
	for _, c := range []struct {
		name, object string
		want         Health
		why          string
	}{
		{"a new Deployment", "{kind: Deployment, apiVersion: apps/v1, metadata: {generation: 1}}", Waiting, "0 of 1 pods are updated and available"},
		{"a change that the controller has not seen", "{kind: Deployment, apiVersion: apps/v1, metadata: {generation: 2}, status: {observedGeneration: 1}}", Waiting, "its change has not been seen yet"},
		{"old pods still exist", "{kind: Deployment, apiVersion: apps/v1, metadata: {generation: 1}, spec: {replicas: 2}, status: {observedGeneration: 1, replicas: 3, updatedReplicas: 2, availableReplicas: 2}}",
			Waiting, "2 of 2 pods are updated and available"},
		{"a Deployment", "{kind: Deployment, apiVersion: apps/v1, metadata: {generation: 1}, spec: {replicas: 2}, status: {observedGeneration: 1, replicas: 2, updatedReplicas: 2, availableReplicas: 2}}", Healthy, ""},
		{"no replica wanted", "{kind: Deployment, apiVersion: apps/v1, spec: {replicas: 0}, status: {observedGeneration: 1}}", Healthy, ""},
		{"no progress", "{kind: Deployment, apiVersion: apps/v1, status: {observedGeneration: 1, conditions: [{type: Progressing, status: 'False', reason: ProgressDeadlineExceeded, message: timed out}]}}",
			Degraded, "makes no progress: timed out"},
		{"a StatefulSet", "{kind: StatefulSet, apiVersion: apps/v1, spec: {replicas: 3}, status: {observedGeneration: 1, readyReplicas: 3, updatedReplicas: 3}}", Healthy, ""},
		{"a partitioned rollout of a StatefulSet", "{kind: StatefulSet, apiVersion: apps/v1, spec: {replicas: 3, updateStrategy: {rollingUpdate: {partition: 2}}}, status: {observedGeneration: 1, readyReplicas: 3, updatedReplicas: 1}}", Healthy, ""},
		{"a StatefulSet that is not updated", "{kind: StatefulSet, apiVersion: apps/v1, spec: {replicas: 3}, status: {observedGeneration: 1, readyReplicas: 3, updatedReplicas: 1}}", Waiting, "3 of 3 pods are ready, 1 updated"},
		{"a StatefulSet that a user updates", "{kind: StatefulSet, apiVersion: apps/v1, spec: {updateStrategy: {type: OnDelete}}, status: {observedGeneration: 1, readyReplicas: 1}}", Healthy, ""},
		{"a DaemonSet", "{kind: DaemonSet, apiVersion: apps/v1, status: {observedGeneration: 1, desiredNumberScheduled: 2, updatedNumberScheduled: 2, numberAvailable: 1}}", Waiting, "1 of 2 pods are updated and available"},
		{"a DaemonSet without nodes", "{kind: DaemonSet, apiVersion: apps/v1, status: {observedGeneration: 1, desiredNumberScheduled: 0}}", Healthy, ""},
		{"a Job", "{kind: Job, apiVersion: batch/v1}", Waiting, "is running"},
		{"a Job that is done", "{kind: Job, apiVersion: batch/v1, status: {conditions: [{type: Complete, status: 'True'}]}}", Healthy, ""},
		{"a Job that failed", "{kind: Job, apiVersion: batch/v1, status: {conditions: [{type: Failed, status: 'True', message: too often}]}}", Degraded, "has failed: too often"},
		{"a CRD", "{kind: CustomResourceDefinition, apiVersion: apiextensions.k8s.io/v1}", Waiting, "is not established yet"},
		{"a CRD whose names are taken", "{kind: CustomResourceDefinition, apiVersion: apiextensions.k8s.io/v1, status: {conditions: [{type: NamesAccepted, status: 'False'}]}}", Degraded, "its names are taken"},
		{"an APIService", "{kind: APIService, apiVersion: apiregistration.k8s.io/v1, status: {conditions: [{type: Available, status: 'False', message: no endpoints}]}}", Waiting, "does not answer yet: no endpoints"},
		{"a claim", "{kind: PersistentVolumeClaim, apiVersion: v1, status: {phase: Pending}}", Waiting, "has no volume yet"},
		{"a lost claim", "{kind: PersistentVolumeClaim, apiVersion: v1, status: {phase: Lost}}", Degraded, "has lost its volume"},
		{"a Service", "{kind: Service, apiVersion: v1, spec: {type: ClusterIP}}", Healthy, ""},
		{"a load balancer without an address", "{kind: Service, apiVersion: v1, spec: {type: LoadBalancer}}", Waiting, "has no address yet"},
		{"a load balancer with an address", "{kind: Service, apiVersion: v1, spec: {type: LoadBalancer}, status: {loadBalancer: {ingress: [{ip: 192.0.2.1}]}}}", Healthy, ""},
		{"a Pod", "{kind: Pod, apiVersion: v1, status: {phase: Running, conditions: [{type: Ready, status: 'False'}]}}", Waiting, "is not ready yet"},
		{"a Pod that is done", "{kind: Pod, apiVersion: v1, status: {phase: Succeeded}}", Healthy, ""},
		{"a Pod without a node", "{kind: Pod, apiVersion: v1, status: {phase: Pending, conditions: [{type: PodScheduled, status: 'False', message: 0/3 nodes are available}]}}", Waiting, "is not scheduled yet: 0/3 nodes are available"},
		{"a Pod that failed", "{kind: Pod, apiVersion: v1, status: {phase: Failed}}", Degraded, "has failed"},
		{"a ReplicaSet", "{kind: ReplicaSet, apiVersion: apps/v1, spec: {replicas: 2}, status: {observedGeneration: 1, replicas: 2, availableReplicas: 1}}", Waiting, "1 of 2 pods are available"},
		{"a ReplicaSet without quota", "{kind: ReplicaSet, apiVersion: apps/v1, status: {observedGeneration: 1, conditions: [{type: ReplicaFailure, status: 'True', message: exceeded quota}]}}", Waiting, "0 of 1 pods are available: exceeded quota"},
		{"a ReplicationController", "{kind: ReplicationController, apiVersion: v1, spec: {replicas: 1}, status: {observedGeneration: 1, replicas: 1, availableReplicas: 1}}", Healthy, ""},
		{"a volume", "{kind: PersistentVolume, apiVersion: v1, status: {phase: Available}}", Healthy, ""},
		{"a volume that failed", "{kind: PersistentVolume, apiVersion: v1, status: {phase: Failed}}", Degraded, "could not be reclaimed"},
		{"a migration", "{kind: StorageVersionMigration, apiVersion: storagemigration.k8s.io/v1beta1, status: {conditions: [{type: Running, status: 'True'}]}}", Waiting, "is not done yet"},
		{"a stalled resource", "{kind: Site, apiVersion: example.com/v1, status: {conditions: [{type: Ready, status: 'True'}, {type: Stalled, status: 'True', message: no access}]}}", Degraded, "is stalled: no access"},
		{"a resource in progress", "{kind: Site, apiVersion: example.com/v1, status: {conditions: [{type: Ready, status: 'True'}, {type: Reconciling, status: 'True'}]}}", Waiting, "is not ready yet"},
		{"a custom resource", "{kind: Site, apiVersion: example.com/v1, status: {conditions: [{type: Ready, status: 'False', message: no disk}]}}", Waiting, "is not ready yet: no disk"},
		{"a custom resource without a status", "{kind: Site, apiVersion: example.com/v1}", Healthy, ""},
		{"a ConfigMap that is being deleted", "{kind: ConfigMap, apiVersion: v1, metadata: {deletionTimestamp: '2026-01-01T00:00:00Z', finalizers: [a/b]}}", Waiting, "is being deleted, and waits for a/b"},
	} {
		content, err := yaml.YAMLToJSON([]byte(c.object))
		if err != nil {
			t.Fatal(err)
		}
		var o unstructured.Unstructured
		if err := o.UnmarshalJSON(content); err != nil {
			t.Fatal(err)
		}
		if got, why := HealthOf(&o); got != c.want || why != c.why {
			t.Errorf("%s: %d %q, want %d %q", c.name, got, why, c.want, c.why)
		}
	}
}

func TestRights(t *testing.T) {
	rules := []nodespec.PolicyRule{{APIGroups: []string{"apps"}, Resources: []string{"deployments"}, Verbs: []string{"get", "create", "patch"}}}
	a := nodespec.Addon{Name: "web", Namespaces: []string{"a", "b"}, Rights: nodespec.AddonRights{Rules: rules, NamespaceAdmin: true, ClusterAdmin: true}}
	g := rbacFor(Rights(a))
	if len(g.roles) != 2 || len(g.bindings) != 4 {
		t.Errorf("two namespaces: %v", g)
	}
	for at, b := range g.bindings {
		if at[0] == "" || b.subjects[0] != (rbacv1.Subject{Kind: "ServiceAccount", Name: "web", Namespace: Namespace}) {
			t.Errorf("%v binds %v", at, b)
		}
	}
	a.Namespaces = nil
	g = rbacFor(Rights(a))
	if b := g.bindings[[2]string{"", "orlop:addon:web:cluster-admin"}]; len(g.bindings) != 2 || b.role.Name != "cluster-admin" || b.role.Kind != "ClusterRole" {
		t.Errorf("the whole cluster: %v", g)
	}
	if got := describeRights(a); !slices.Equal(got, []string{"everything (cluster-admin)", "the role admin in the whole cluster", "get, create, patch deployments (apps) in the whole cluster"}) {
		t.Errorf("the description of the rights: %q", got)
	}

	removing := Removing("web", []Item{
		{Version: "v1", Kind: "ConfigMap", Resource: "configmaps", Namespace: "a", Name: "y"},
		{Version: "v1", Kind: "ConfigMap", Resource: "configmaps", Namespace: "a", Name: "x"},
		{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition", Resource: "customresourcedefinitions", Name: "sites.web.example.com"},
	})
	g = rbacFor(removing)
	at := [2]string{"a", "orlop:addon:web.remover"}
	want := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{"x", "y"}, Verbs: []string{"get", "delete"}}}
	if !compare(rbacObjects{roles: map[[2]string][]rbacv1.PolicyRule{at: want}}, rbacObjects{roles: map[[2]string][]rbacv1.PolicyRule{at: g.roles[at]}}).empty() {
		t.Errorf("the rights for removing objects: %v", g.roles[at])
	}
	if r := g.roles[[2]string{"", "orlop:addon:web.remover"}]; len(r) != 2 || r[1].Resources[0] != "sites" || r[1].APIGroups[0] != "web.example.com" || r[1].Verbs[0] != "list" {
		t.Errorf("the rights for removing a definition: %v", r)
	}
}

// TestNamespace checks that pkg/config has the name of this package's namespace. The configuration
// rejects objects in that namespace.
func TestNamespace(t *testing.T) {
	if Namespace != config.AddonNamespace {
		t.Errorf("the namespace is %s here, and %s in pkg/config", Namespace, config.AddonNamespace)
	}
}

func TestCompare(t *testing.T) {
	have, want := rbacFor(Rights(nodespec.Addon{Name: "a", Rights: nodespec.AddonRights{ClusterAdmin: true}})), rbacFor(Removing("b", []Item{{Resource: "pods", Name: "x"}}))
	d := compare(have, want)
	if len(d.unbind) != 1 || len(d.drop) != 0 || len(d.add) != 1 || len(d.bind) != 1 || len(d.change)+len(d.resubject) != 0 {
		t.Errorf("between different sets, the difference is %+v", d)
	}
	if !compare(want, want).empty() {
		t.Error("compare finds a difference between equal sets")
	}
	changed := rbacFor(Removing("b", []Item{{Resource: "pods", Name: "y"}}))
	if d := compare(want, changed); len(d.change) != 1 || len(d.unbind)+len(d.bind) != 0 {
		t.Errorf("after a change of a role, the difference is %+v", d)
	}
}

// TestRecord checks that a written record can be read again, and that the state retains the start
// of its phase.
func TestRecord(t *testing.T) {
	at := time.Unix(1e9, 0).UTC()
	r := Record{Inventory: []Item{{Version: "v1", Kind: "ConfigMap", Resource: "configmaps", Namespace: "a", Name: "x"}}, Node: "n", Finished: "d", Orphaned: []OrphanedObject{{"Namespace a", "its data would be lost"}}}
	task := task{name: "web", addon: &nodespec.Addon{Rights: nodespec.AddonRights{ClusterAdmin: true}}}
	s := task.nextState(outcome{objects: 2, healthy: 1, waits: []string{"Job a/b: is running"}}, r, State{Phase: Applying, Since: at}, at.Add(time.Hour))
	if s.Phase != Applying || !s.Since.Equal(at) || s.Line() != "Applying, 1 of 2 objects healthy: Job a/b: is running" {
		t.Errorf("the state is %+v, %s", s, s.Line())
	}
	m, err := encode("web", r, s)
	if err != nil {
		t.Fatal(err)
	}
	if m.Data["notes"] != "Namespace a: stays, because its data would be lost" || m.Data["rights"] != "everything (cluster-admin)" || m.Data["objects"] != "1 of 2 healthy" {
		t.Errorf("the ConfigMap has the data %q", m.Data)
	}
	again, state, err := decode(m)
	if err != nil || len(again.Inventory) != 1 || again.Inventory[0] != r.Inventory[0] || again.Finished != "d" || state.Phase != Applying || !state.Since.Equal(at) {
		t.Errorf("decode: %v, record %+v, state %+v", err, again, state)
	}
	if s := task.nextState(outcome{problems: []string{strings.Repeat("x ", 300), "2", "3", "4", "5", "6"}}, r, s, at.Add(time.Hour)); s.Phase != Failed || len(s.Problems) != 6 || s.Since.Equal(at) {
		t.Errorf("the state with problems is %+v", s)
	}
	task.addon = nil
	if s := task.nextState(outcome{}, r, s, at); s.Phase != Pruning || s.Objects != 1 || s.Rights[0] != "everything (cluster-admin)" {
		t.Errorf("the state without a document is %+v", s)
	}
	m.Data[fieldRecord] = "{"
	if _, _, err := decode(m); err == nil || !strings.Contains(err.Error(), "ConfigMap orlop-addons/web") {
		t.Error(err)
	}
}

// TestLeaving checks that no object counts as unwanted while a kind is unknown. A hook is deleted
// nevertheless, so it runs again.
func TestLeaving(t *testing.T) {
	own := Object{Item: Item{"batch", "v1", "Job", "jobs", "web", "hook"}, Hook: hook{events: []string{"pre-install"}}}
	old := Item{"", "v1", "ConfigMap", "configmaps", "web", "old"}
	for _, unknown := range [][]string{nil, {"Widget w: the API server does not know Widget"}} {
		one := task{record: Record{Inventory: []Item{old, own.Item}}, wanted: Wanted{Digest: "2", Objects: []Object{own}, Unknown: unknown}}
		var names []string
		for _, i := range one.toDelete() {
			names = append(names, i.Name)
		}
		want := []string{"old", "hook"}
		if unknown != nil {
			want = want[1:]
		}
		if !slices.Equal(names, want) {
			t.Errorf("unknown %q: toDelete returns %q, want %q", unknown, names, want)
		}
	}
}
