package addons

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// ended sets the condition of a Job.
func ended(o *unstructured.Unstructured, condition string) {
	conditions := []any{map[string]any{"type": condition, "status": "True", "message": "too often"}}
	// an object accepts this field
	_ = unstructured.SetNestedSlice(o.Object, conditions, "status", "conditions")
}

const (
	fleeting = `
apiVersion: batch/v1
kind: Job
metadata: {name: NAME, annotations: {text: TEXT, HOOK}}
spec: {ttlSecondsAfterFinished: 30}
`
	lasting = `
apiVersion: batch/v1
kind: Job
metadata: {name: lasting}
`
)

func job(name, text, hook string) string {
	return strings.NewReplacer("NAME", name, "TEXT", text, "HOOK", hook).Replace(fleeting)
}

// TestOnce checks that a Job which is deleted after its end is not created again until its text
// changes, also by a machine that has only the record.
func TestOnce(t *testing.T) {
	s := newSite(t)
	at := func(name string) key { return key{"batch", "Job", "web", name} }
	s.addon.Manifests = []string{job("migrate", "one", "") + "---" + lasting}
	s.expect("both run", "apply Job web/lasting; apply Job web/migrate", 0, 0)
	delete(s.objects, at("migrate"))
	delete(s.objects, at("lasting"))
	s.expect("the one that goes by itself does not run again", "apply Job web/lasting", 0, 0)
	s.applied = map[key]appliedObject{} // another machine becomes the leader
	s.expect("nor by another machine", "apply Job web/lasting", 0, 0)
	s.now = s.now.Add(reapplyInterval)
	s.expect("nor after long", "apply Job web/lasting", 0, 0)

	s.addon.Manifests = []string{job("migrate", "two", "") + "---" + lasting}
	s.asleep["Job web/migrate"] = true
	s.expect("another text runs", "apply Job web/migrate", 0, 1)
	ended(s.objects[at("migrate")], "Failed")
	s.expect("it fails", "", 1, 0)
	delete(s.objects, at("migrate"))
	if done, out := s.run(); done != "" || len(out.problems) != 1 || !strings.Contains(out.problems[0], "has failed: too often; it is deleted and not created again") {
		t.Errorf("failed and gone: %q, %q", done, out.problems)
	}

	s.addon.Manifests = []string{lasting}
	s.expect("no longer wanted", "", 0, 0)
	if len(s.record.Ran) != 0 {
		t.Errorf("the record keeps %+v", s.record.Ran)
	}
	delete(s.asleep, "Job web/migrate")
	s.addon.Manifests = []string{job("migrate", "two", "")}
	s.expect("wanted again, it runs", "apply Job web/migrate; delete Job web/lasting", 0, 1)
}

// TestHookOnce checks that a hook which disappears before a pass has seen its end counts as run,
// and that the later stages follow.
func TestHookOnce(t *testing.T) {
	s := newSite(t)
	s.asleep["Job web/before"] = true
	hook := `helm.sh/hook: "pre-install,pre-upgrade"`
	settings := "---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}}"
	s.addon.Manifests = []string{job("before", "one", hook) + settings}
	s.expect("the hook runs", "apply Job web/before", 0, 1)
	delete(s.objects, key{"batch", "Job", "web", "before"})
	s.expect("its end was not seen", "apply ConfigMap web/settings", 0, 0)
	s.expect("nothing is left", "", 0, 0)
	s.addon.Manifests[0] += "\n---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: more}}"
	s.expect("it runs again for other manifests", "apply Job web/before", 0, 1)
}

// TestApplyOnce checks that an object with the annotation is applied once for each text, and left
// alone.
func TestApplyOnce(t *testing.T) {
	s := newSite(t)
	seed := func(text string) string {
		return "{apiVersion: v1, kind: ConfigMap, metadata: {name: seed, annotations: {orlop.dev/addon-apply: once}}, data: {text: " + text + "}}"
	}
	s.addon.Manifests = []string{seed("one")}
	s.expect("it is made", "apply ConfigMap web/seed", 0, 0)
	s.objects[key{"", "ConfigMap", "web", "seed"}].SetResourceVersion("changed by others")
	s.expect("it is left alone", "", 0, 0)
	delete(s.objects, key{"", "ConfigMap", "web", "seed"})
	s.expect("gone it stays", "", 0, 0)
	s.addon.Manifests = []string{seed("two")}
	s.expect("another text is applied", "apply ConfigMap web/seed", 0, 0)
}

// TestPodOnce checks that an ended pod is not created again, and a pod that was deleted before its
// end is.
func TestPodOnce(t *testing.T) {
	s := newSite(t)
	at := key{"", "Pod", "web", "task"}
	s.addon.Manifests = []string{"{apiVersion: v1, kind: Pod, metadata: {name: task}}"}
	s.expect("it is made", "apply Pod web/task", 0, 1)
	delete(s.objects, at)
	s.expect("deleted while it ran", "apply Pod web/task", 0, 1)
	// an object accepts this field
	_ = unstructured.SetNestedField(s.objects[at].Object, "Succeeded", "status", "phase")
	s.expect("it has ended", "", 0, 0)
	delete(s.objects, at)
	s.expect("ended and gone", "", 0, 0)
}

// parsed returns the object of a text.
func parsed(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	content, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON(content); err != nil {
		t.Fatal(err)
	}
	return o
}

// TestUnused checks that a claim without a consumer is healthy.
func TestUnused(t *testing.T) {
	waits, immediate := "volumeBindingMode: WaitForFirstConsumer", "volumeBindingMode: Immediate"
	for _, c := range []struct {
		name, claim, class string // empty class: it cannot be read
		want               bool
	}{
		{"no pod uses it", "{}", waits, true},
		{"a pod waits for it", "{volume.kubernetes.io/selected-node: m1}", waits, false},
		{"it is to be made at once", "{}", immediate, false},
		{"nothing has begun", "{}", "", true},
		{"it is being made", "{volume.kubernetes.io/storage-provisioner: disks}", "", false},
		{"it is being made, as before 1.23", "{volume.beta.kubernetes.io/storage-provisioner: disks}", "", false},
		{"it is being made for a pod", "{volume.kubernetes.io/selected-node: m1}", "", false},
	} {
		claim := parsed(t, "{kind: PersistentVolumeClaim, apiVersion: v1, metadata: {name: c, annotations: "+c.claim+"}}")
		var class *unstructured.Unstructured
		if c.class != "" {
			class = parsed(t, "{kind: StorageClass, apiVersion: storage.k8s.io/v1, metadata: {name: c}, "+c.class+"}")
		}
		if got := waitsForConsumer(claim, class); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}

// TestClaim checks that a claim which only a CronJob uses does not delay a later hook, and that a
// claim of a missing class does.
func TestClaim(t *testing.T) {
	s := newSite(t)
	s.addon.Manifests = []string{`
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: backup}, spec: {storageClassName: local}}
---
{apiVersion: batch/v1, kind: Job, metadata: {name: after, annotations: {helm.sh/hook: post-install}}}
`}
	if _, out := s.run(); len(out.waits) != 1 || !strings.Contains(out.waits[0], "there is no StorageClass local") {
		t.Errorf("without its class: %q", out.waits)
	}
	s.objects[classOf("local").key()] = parsed(t, "{kind: StorageClass, apiVersion: storage.k8s.io/v1, metadata: {name: local}, volumeBindingMode: WaitForFirstConsumer}")
	s.expect("it waits for a pod", "apply Job web/after", 0, 0)
	s.expect("all is there", "", 0, 0)
}

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

// TestStreams checks that all concatenated objects are read, or none.
func TestStreams(t *testing.T) {
	one, two := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one"},"data":{"n":"1e3"}}`, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"two"}}`
	flow := "{apiVersion: v1, kind: ConfigMap, metadata: {name: flow}}"
	for text, want := range map[string]string{
		one: "one", one + "\n" + two: "one two", one + two: "one two", " \n" + one + "\n\n" + two + "\n": "one two",
		one + "\n---\n" + two: "one two", flow: "flow", flow + "\n---\n" + one + two: "flow one two", one + " null": "one",
		one + "," + two: "!", one + "\n" + flow: "!", flow + "\n" + one: "!", flow + "\n...\n" + flow: "!", one + " trailing": "!",
		"[" + one + "," + two + "]": "!", one + `{"apiVersion":"v1"`: "!", flow + "\n...\n": "flow", "# nothing": "",
	} {
		objects, err := parse(text)
		var names []string
		for _, o := range objects {
			names = append(names, o.GetName())
		}
		got := strings.Join(names, " ")
		if err != nil {
			got = "!"
		}
		if got != want {
			t.Errorf("%s\nare %q, %v; want %q", text, got, err, want)
		}
	}
}
