package addons

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// ended sets the condition that a Job has after its end.
func ended(o *unstructured.Unstructured, condition string) {
	conditions := []any{map[string]any{"type": condition, "status": "True", "message": "too often"}}
	// never fails for this object
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
	s.expect("the Job that Kubernetes has deleted does not run again", "apply Job web/lasting", 0, 0)
	s.applied = map[key]appliedObject{} // another machine becomes the leader
	s.expect("another machine does not run it either", "apply Job web/lasting", 0, 0)
	s.now = s.now.Add(reapplyInterval)
	s.expect("it does not run after reapplyInterval either", "apply Job web/lasting", 0, 0)

	s.addon.Manifests = []string{job("migrate", "two", "") + "---" + lasting}
	s.asleep["Job web/migrate"] = true
	s.expect("another text runs", "apply Job web/migrate", 0, 1)
	ended(s.objects[at("migrate")], "Failed")
	s.expect("the Job fails", "", 1, 0)
	delete(s.objects, at("migrate"))
	if done, out := s.run(); done != "" || len(out.problems) != 1 || !strings.Contains(out.problems[0], "has failed: too often; it is deleted and not created again") {
		t.Errorf("a failed Job after its deletion: %q, %q", done, out.problems)
	}

	s.addon.Manifests = []string{lasting}
	s.expect("the Job is no longer wanted", "", 0, 0)
	if len(s.record.Ran) != 0 {
		t.Errorf("the record contains %+v", s.record.Ran)
	}
	delete(s.asleep, "Job web/migrate")
	s.addon.Manifests = []string{job("migrate", "two", "")}
	s.expect("a Job with a new text runs", "apply Job web/migrate; delete Job web/lasting", 0, 1)
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
	s.expect("the hook disappears before its end was seen", "apply ConfigMap web/settings", 0, 0)
	s.expect("no operation is left", "", 0, 0)
	s.addon.Manifests[0] += "\n---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: more}}"
	s.expect("the hook runs again for other manifests", "apply Job web/before", 0, 1)
}

// TestApplyOnce checks that an object with the annotation is applied once for each text, and
// neither changed nor created again after that.
func TestApplyOnce(t *testing.T) {
	s := newSite(t)
	seed := func(text string) string {
		return "{apiVersion: v1, kind: ConfigMap, metadata: {name: seed, annotations: {orlop.dev/addon-apply: once}}, data: {text: " + text + "}}"
	}
	s.addon.Manifests = []string{seed("one")}
	s.expect("the object is created", "apply ConfigMap web/seed", 0, 0)
	s.objects[key{"", "ConfigMap", "web", "seed"}].SetResourceVersion("changed by others")
	s.expect("a changed object is left alone", "", 0, 0)
	delete(s.objects, key{"", "ConfigMap", "web", "seed"})
	s.expect("a deleted object is not created again", "", 0, 0)
	s.addon.Manifests = []string{seed("two")}
	s.expect("another text is applied", "apply ConfigMap web/seed", 0, 0)
}

// TestPodOnce checks that a pod that has ended is not created again after its deletion, and that a
// pod that was deleted before its end is created again.
func TestPodOnce(t *testing.T) {
	s := newSite(t)
	at := key{"", "Pod", "web", "task"}
	s.addon.Manifests = []string{"{apiVersion: v1, kind: Pod, metadata: {name: task}, spec: {restartPolicy: Never}}"}
	s.expect("the object is created", "apply Pod web/task", 0, 1)
	delete(s.objects, at)
	s.expect("the Pod was deleted before its end", "apply Pod web/task", 0, 1)
	// never fails for this object
	_ = unstructured.SetNestedField(s.objects[at].Object, "Succeeded", "status", "phase")
	s.expect("the Pod has ended", "", 0, 0)
	delete(s.objects, at)
	s.expect("the deleted Pod that has ended is not created again", "", 0, 0)
}

// TestEnds checks the objects that Kubernetes deletes after their end. Such an object is not
// created again, and the add-on is healthy only if the object has done its work.
func TestEnds(t *testing.T) {
	const never, ever = "spec: {restartPolicy: Never}", "spec: {restartPolicy: Always}"
	for _, c := range []struct {
		name, version, kind, spec, status string
		problem                           string // the problem while the object exists
		gone                              string // problem after its deletion; "again": recreated
	}{
		{"a Pod that ran", "v1", "Pod", never, "{phase: Succeeded}", "", ""},
		{"a Pod that failed", "v1", "Pod", never, "{phase: Failed, containerStatuses: [{name: a, state: {terminated: {exitCode: 0}}}, {name: b, state: {terminated: {exitCode: 3}}}]}",
			"has failed: container b ended with status 3", "has failed: container b ended with status 3; it is deleted and not created again"},
		{"an evicted Pod that should run for ever", "v1", "Pod", ever, "{phase: Failed, reason: Evicted, message: low on memory}", "has failed: Evicted: low on memory", "again"},
		{"a Job with a TTL that failed", "batch/v1", "Job", "spec: {ttlSecondsAfterFinished: 5}", "{conditions: [{type: FailureTarget, status: 'True', message: too often}]}",
			"has failed: too often", "has failed: too often; it is deleted"},
		{"a Job without a TTL", "batch/v1", "Job", "spec: {}", "{conditions: [{type: Complete, status: 'True'}]}", "", "again"},
		{"a request that was answered", "certificates.k8s.io/v1", "CertificateSigningRequest", "spec: {}", "{certificate: aGk=, conditions: [{type: Approved, status: 'True'}]}", "", ""},
		{"a request that was denied", "certificates.k8s.io/v1", "CertificateSigningRequest", "spec: {}", "{conditions: [{type: Denied, status: 'True', message: unknown name}]}",
			"was denied: unknown name", "was denied: unknown name; it is deleted and not created again"},
		{"a request that is not approved", "certificates.k8s.io/v1", "CertificateSigningRequest", "spec: {}", "{}", "is not approved yet", "is not approved yet; it is deleted and not created again"},
		{"a request without a signer", "certificates.k8s.io/v1", "CertificateSigningRequest", "spec: {}", "{conditions: [{type: Approved, status: 'True'}]}",
			"is approved, and not signed yet", "is approved, and not signed yet; it is deleted"},
		{"a request of a pod", "certificates.k8s.io/v1", "PodCertificateRequest", "spec: {}", "{conditions: [{type: Issued, status: 'True'}]}", "", ""},
		{"a request about devices", "resource.k8s.io/v1alpha3", "ResourcePoolStatusRequest", "spec: {}", "{conditions: [{type: Failed, status: 'True', message: no pool}]}",
			"has failed: no pool", "has failed: no pool; it is deleted"},
		{"an Event", "v1", "Event", "reason: Installed", "{}", "", ""},
		{"a newer Event", "events.k8s.io/v1", "Event", "reason: Installed", "{}", "", ""},
		{"a LeaseCandidate", "coordination.k8s.io/v1beta1", "LeaseCandidate", "spec: {}", "{}", "", ""},
		{"a Lease", "coordination.k8s.io/v1", "Lease", "spec: {}", "{}", "", "again"},
	} {
		s := newSite(t)
		item := Item{Kind: c.kind, Namespace: "web", Name: "x"}
		s.addon.Manifests = []string{"apiVersion: " + c.version + "\nkind: " + c.kind + "\nmetadata: {name: x}\n" + c.spec}
		s.run()
		var at key
		for at = range s.objects {
			s.objects[at].Object["status"] = parsed(t, "{apiVersion: v1, kind: X, status: "+c.status+"}").Object["status"]
		}
		_, out := s.run()
		if got := strings.Join(append(out.problems, out.waits...), "; "); got != "" && got != item.String()+": "+c.problem || got == "" && c.problem != "" {
			t.Errorf("%s: %q, want %q", c.name, got, c.problem)
		}
		delete(s.objects, at)
		s.applied = map[key]appliedObject{} // another machine becomes the leader
		done, out := s.run()
		if again := done == "apply "+item.String(); again != (c.gone == "again") || !again && done != "" {
			t.Errorf("%s: after its deletion: %q", c.name, done)
		}
		if got := strings.Join(out.problems, "; "); c.gone != "again" && (got == "") != (c.gone == "") || c.gone != "again" && !strings.Contains(got, c.gone) {
			t.Errorf("%s: after its deletion: %q, want %q", c.name, got, c.gone)
		}
	}
}

// TestLosses checks that an object which others delete again and again is created with growing
// delays, that the state reports this, and that a change of the object's text resets the delays.
func TestLosses(t *testing.T) {
	s := newSite(t)
	at := key{"", "ConfigMap", "web", "lost"}
	text := func(value string) []string {
		return []string{"{apiVersion: v1, kind: ConfigMap, metadata: {name: lost}, data: {a: " + value + "}}"}
	}
	s.addon.Manifests = text("one")
	s.expect("the object is created", "apply ConfigMap web/lost", 0, 0)
	created, waited := 0, ""
	for range 6 * 60 * 8 { // eight hours
		delete(s.objects, at)
		done, out := s.run()
		if done != "" {
			created++
		}
		waited += strings.Join(out.waits, "")
	}
	if created < 15 || created > 25 {
		t.Errorf("the object was created %d times in eight hours", created)
	}
	if want := "ConfigMap web/lost: others have deleted it 6 times in a row; it is created again in 20s; the annotation orlop.dev/addon-apply: once leaves it deleted"; !strings.Contains(waited, want) {
		t.Errorf("%q is not in %.300q", want, waited)
	}
	s.addon.Manifests = text("two")
	s.expect("another text", "apply ConfigMap web/lost", 0, 0)
	s.now = s.now.Add(lossPeriod)
	s.expect("the object exists", "apply ConfigMap web/lost", 0, 0)
	delete(s.objects, at)
	s.expect("the object is lost once", "apply ConfigMap web/lost", 0, 0)
}

// TestRefusedRepair checks that refused creations of a lost object count as a single loss: the
// object is created as soon as the API server accepts it.
func TestRefusedRepair(t *testing.T) {
	s := newSite(t)
	s.addon.Manifests = []string{"{apiVersion: v1, kind: ConfigMap, metadata: {name: lost}}"}
	s.expect("the object is created", "apply ConfigMap web/lost", 0, 0)
	delete(s.objects, key{"", "ConfigMap", "web", "lost"})
	s.refused["ConfigMap web/lost"] = apierrors.NewBadRequest("denied")
	for range 4 * freeLosses {
		s.expect("the creation is refused", "", 1, 0)
	}
	delete(s.refused, "ConfigMap web/lost")
	s.expect("the creation is accepted", "apply ConfigMap web/lost", 0, 0)
	if got := s.losses[key{"", "ConfigMap", "web", "lost"}].count; got != 1 {
		t.Errorf("%d losses are counted", got)
	}
}

// TestFailureWhileDeleted checks that the reason of a failure stays while the failed object is
// being deleted.
func TestFailureWhileDeleted(t *testing.T) {
	s := newSite(t)
	at := key{"batch", "Job", "web", "migrate"}
	s.asleep["Job web/migrate"] = true
	s.addon.Manifests = []string{job("migrate", "one", "")}
	s.expect("the Job runs", "apply Job web/migrate", 0, 1)
	ended(s.objects[at], "Failed")
	s.expect("the Job fails", "", 1, 0)
	now := metav1.NewTime(s.now)
	s.objects[at].SetDeletionTimestamp(&now)
	s.objects[at].SetFinalizers([]string{metav1.FinalizerDeleteDependents})
	s.expect("its pods are deleted first", "", 0, 1)
	delete(s.objects, at)
	if done, out := s.run(); done != "" || len(out.problems) != 1 || !strings.Contains(out.problems[0], "has failed: too often; it is deleted and not created again") {
		t.Errorf("a failed Job after its deletion: %q, %q", done, out.problems)
	}
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
		name, claim, class string // class: empty if the class cannot be read
		want               bool
	}{
		{"no pod uses the claim", "{}", waits, true},
		{"a pod waits for the claim", "{volume.kubernetes.io/selected-node: m1}", waits, false},
		{"the volume is to be created immediately", "{}", immediate, false},
		{"unreadable class, no provisioner", "{}", "", true},
		{"unreadable class, a provisioner creates the volume", "{volume.kubernetes.io/storage-provisioner: disks}", "", false},
		{"unreadable class, a provisioner from before 1.23", "{volume.beta.kubernetes.io/storage-provisioner: disks}", "", false},
		{"unreadable class, a pod waits for the claim", "{volume.kubernetes.io/selected-node: m1}", "", false},
	} {
		claim := parsed(t, "{kind: PersistentVolumeClaim, apiVersion: v1, metadata: {name: c, annotations: "+c.claim+"}}")
		var class *unstructured.Unstructured
		if c.class != "" {
			class = parsed(t, "{kind: StorageClass, apiVersion: storage.k8s.io/v1, metadata: {name: c}, "+c.class+"}")
		}
		if got := waitsForConsumer(claim, class); got != c.want {
			t.Errorf("%s: waitsForConsumer returns %t", c.name, got)
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
	s.expect("the claim waits for a pod", "apply Job web/after", 0, 0)
	s.expect("no operation is left", "", 0, 0)
}

// TestStreams checks that parse reads all concatenated objects, or none. "!" means an error.
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
