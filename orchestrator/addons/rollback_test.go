package addons

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	fakediscovery "k8s.io/client-go/discovery/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// setManifests changes the document of an add-on.
func (r *row) setManifests(name string, manifests ...string) {
	r.Helper()
	i := slices.IndexFunc(r.m.all, func(a nodespec.Addon) bool { return a.Name == name })
	r.m.all[i].Manifests = manifests
	r.m.wanted[name] = Read(r.m.all[i], nil, known)
}

// runFor makes rounds, one every maxBackoff, for the time d.
func (r *row) runFor(d time.Duration) {
	r.Helper()
	for end := r.now.Add(d); r.now.Before(end); {
		r.now = r.now.Add(maxBackoff)
		if err := r.m.reconcileDue(r.Context(), r.now, true); err != nil {
			r.Fatal(err)
		}
	}
}

// has reports whether the add-on name has applied an object with the given text in its annotation.
func (r *row) has(name string, kind, object, text string) bool {
	o := r.fakes[name].objects[key{"", kind, "default", object}]
	return o != nil && o.GetAnnotations()["text"] == text
}

const (
	good = `{apiVersion: v1, kind: ConfigMap, metadata: {name: c, annotations: {text: one}}}`
	bad  = `{apiVersion: v1, kind: ConfigMap, metadata: {name: c, annotations: {text: two}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: never}}`
)

// TestRollback checks that manifests that do not become healthy in time are rolled back, until the
// document changes or an operator requests another trial.
func TestRollback(t *testing.T) {
	r := newRow(t, "a", "b")
	resources := r.client.Discovery().(*fakediscovery.FakeDiscovery)
	resources.Resources = []*metav1.APIResourceList{{GroupVersion: "v1", APIResources: []metav1.APIResource{
		{Name: "configmaps", Kind: "ConfigMap", Namespaced: true}, {Name: "pods", Kind: "Pod", Namespaced: true},
	}}}
	r.m.kinds = newKinds(r.client)
	r.m.all[0].Within = 5 * time.Minute
	r.setManifests("a", bad)
	r.runFor(20 * time.Minute)
	if !r.has("a", "Pod", "never", "") || r.m.states["a"].state.Phase != Applying {
		t.Fatalf("the first manifests were rolled back, or are not applied: %s", r.m.detail())
	}
	r.setManifests("a", good)
	r.runFor(2 * maxBackoff)
	if r.has("a", "Pod", "never", "") || !r.has("a", "ConfigMap", "c", "one") || r.m.states["a"].state.Phase != Ready {
		t.Fatal(r.m.detail())
	}
	if s, err := r.client.CoreV1().Secrets(Namespace).Get(t.Context(), "a", metav1.GetOptions{}); err != nil || s.Annotations[storedDigest] != r.m.wanted["a"].Digest {
		t.Fatalf("the healthy manifests are not stored: %v, %v", s, err)
	}

	r.setManifests("a", bad)
	r.runFor(4 * time.Minute)
	if !r.has("a", "ConfigMap", "c", "two") || !r.has("a", "Pod", "never", "") {
		t.Fatalf("rolled back before the time limit, or not applied: %s", r.m.detail())
	}
	r.now = r.now.Add(time.Hour) // no pass takes place in this hour
	r.runFor(maxBackoff)
	if !r.has("a", "Pod", "never", "") {
		t.Fatal("the time without a pass counted toward the limit")
	}
	back := func(when string) {
		t.Helper()
		r.runFor(2 * time.Minute)
		if !r.has("a", "ConfigMap", "c", "one") || r.has("a", "Pod", "never", "") {
			t.Errorf("%s: not rolled back: %s", when, r.m.detail())
		}
		for _, want := range []string{"1 of 2 add-ons are ready; a: Failed, 1 of 1 objects healthy: its manifests ", " did not become healthy in time (Pod default/never: is not ready yet), and the previous manifests are restored"} {
			if !strings.Contains(r.m.detail(), want) {
				t.Errorf("%s: %q is not in %s", when, want, r.m.detail())
			}
		}
	}
	back("after the time limit")
	r.m.states = map[string]*addonState{"a": r.fresh("a"), "b": r.fresh("b")}
	back("after a change of the leader")
	delete(r.fakes["a"].objects, key{"", "ConfigMap", "default", "c"})
	back("after the loss of an object")

	m := r.record("a")
	m.Annotations = map[string]string{retryAnnotation: "now"}
	if _, err := r.client.CoreV1().ConfigMaps(Namespace).Update(t.Context(), m, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.runFor(maxBackoff)
	if !r.has("a", "Pod", "never", "") || !r.has("a", "ConfigMap", "c", "two") {
		t.Errorf("no second trial: %s", r.m.detail())
	}
	if m := r.record("a"); len(m.Annotations) > 0 {
		t.Errorf("the annotation that requests a trial stays: %v", m.Annotations)
	}
	r.runFor(5 * time.Minute)
	back("after the second trial")

	better := strings.Replace(good, "one", "three", 1)
	r.setManifests("a", better)
	r.runFor(maxBackoff)
	if !strings.Contains(r.m.detail(), "all objects are healthy, and must stay so for another ") {
		t.Errorf("reported as healthy before healthyPeriod: %s", r.m.detail())
	}
	r.runFor(healthyPeriod + maxBackoff)
	if !r.has("a", "ConfigMap", "c", "three") || r.m.detail() != "2 of 2 add-ons are ready" {
		t.Errorf("other manifests: %s", r.m.detail())
	}
	if strings.Contains(r.record("a").Data[fieldRecord], "withdrawn") {
		t.Errorf("the record still has the manifests that were rolled back: %s", r.record("a").Data[fieldRecord])
	}
	r.m.all[0].Within = 0
	r.setManifests("a", bad)
	r.runFor(time.Hour)
	if !r.has("a", "Pod", "never", "") {
		t.Error("rolled back although the document sets no time limit")
	}

	r.m.all = r.m.all[1:]
	r.runFor(2 * time.Minute)
	if _, err := r.client.CoreV1().Secrets(Namespace).Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the stored manifests of the removed add-on still exist: %v", err)
	}
}

// TestNoPreviousManifests checks that without stored manifests the healthy objects stay, the reason
// is reported, and no other add-on is affected. A change of the rights in the document starts
// another trial of the same manifests.
func TestNoPreviousManifests(t *testing.T) {
	r := newRow(t, "a", "b")
	r.m.kinds = newKinds(r.client)
	r.client.Discovery().(*fakediscovery.FakeDiscovery).Resources = []*metav1.APIResourceList{{GroupVersion: "v1", APIResources: []metav1.APIResource{
		{Name: "configmaps", Kind: "ConfigMap", Namespaced: true}, {Name: "pods", Kind: "Pod", Namespaced: true},
	}}}
	r.m.all[0].Within = time.Minute
	r.setManifests("a", good)
	r.runFor(maxBackoff)
	r.setManifests("a", bad)
	r.runFor(5 * time.Minute)
	if r.has("a", "Pod", "never", "") || !r.has("a", "ConfigMap", "c", "one") {
		t.Fatalf("not rolled back: %s", r.m.detail())
	}
	var refuse error
	r.client.PrependReactor("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) { return refuse != nil, nil, refuse })
	refuse = apierrors.NewInternalError(errors.New("no key"))
	r.m.previousByName = nil
	delete(r.fakes["b"].objects, key{"", "ConfigMap", "default", "b"})
	r.runFor(2 * time.Minute)
	for _, want := range []string{"1 of 2 add-ons are ready", "are being restored", "the healthy objects stay as they are: ", "no key"} {
		if !strings.Contains(r.m.detail(), want) {
			t.Errorf("%q is not in %s", want, r.m.detail())
		}
	}
	if !r.has("a", "ConfigMap", "c", "one") || !r.has("b", "ConfigMap", "b", "") {
		t.Error("a healthy object was changed, or a lost object of another add-on was not restored")
	}
	refuse = nil
	r.runFor(2 * time.Minute)
	s, err := r.client.CoreV1().Secrets(Namespace).Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	forged, err := storedManifests{Digest: s.Annotations[storedDigest], Namespace: "default", Manifests: []string{bad}}.secret("a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.client.CoreV1().Secrets(Namespace).Update(t.Context(), forged, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.runFor(2 * reapplyInterval)
	if !strings.Contains(r.m.detail(), "does not contain the manifests that were healthy") || r.has("a", "Pod", "never", "") {
		t.Errorf("forged manifests are used: %s", r.m.detail())
	}
	r.m.all[0].Rights.NamespaceAdmin = true
	r.runFor(maxBackoff)
	if !r.has("a", "Pod", "never", "") {
		t.Errorf("no trial after a change of the rights: %s", r.m.detail())
	}
}

// TestFailedHookRunsAgain checks that a failed hook runs again in each trial of the manifests.
func TestFailedHookRunsAgain(t *testing.T) {
	s := newSite(t)
	s.canRollBack = true
	s.addon.Manifests = []string{"{apiVersion: v1, kind: ConfigMap, metadata: {name: c}}"}
	s.expect("the first manifests", "apply ConfigMap web/c", 0, 0)
	s.addon.Manifests[0] += "\n---\n{apiVersion: batch/v1, kind: Job, metadata: {name: migrate, annotations: {helm.sh/hook: pre-upgrade}}}"
	s.asleep["Job web/migrate"] = true
	s.expect("the hook", "apply Job web/migrate", 0, 1)
	fail := func() {
		job := s.objects[key{"batch", "Job", "web", "migrate"}]
		_ = unstructured.SetNestedSlice(job.Object, []any{map[string]any{"type": "Failed", "status": "True"}}, "status", "conditions")
	}
	fail()
	s.expect("the hook has failed", "", 1, 0)
	s.record.Running, s.record.Done = "", nil // the beginning of another trial
	s.expect("another trial deletes the failed hook", "delete Job web/migrate", 0, 1)
	s.expect("another trial runs the hook again", "apply Job web/migrate", 0, 1)
	fail()
	s.expect("the hook has failed again", "", 1, 0)
	s.expect("the failed hook does not run again", "", 1, 0)
}

// fresh returns the state in a process that has just started.
func (r *row) fresh(name string) *addonState {
	return &addonState{reconciler: reconciler{name: name, as: r.fakes[name], remover: r.fakes[name], applied: map[key]appliedObject{}}}
}

// TestStoredManifests checks that manifests are unchanged after storing, and that manifests that do
// not fit are reported.
func TestStoredManifests(t *testing.T) {
	want := storedManifests{Digest: "d", Namespace: "n", Manifests: []string{good, bad}}
	s, err := want.secret("a")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := unpack(s); err != nil || got.Digest != "d" || got.Namespace != "n" || !slices.Equal(got.Manifests, want.Manifests) {
		t.Errorf("the unpacked manifests are %+v, %v", got, err)
	}
	s.Data[storedField] = s.Data[storedField][:20]
	if _, err := unpack(s); err == nil || err.Error() != "Secret orlop-addons/a: cannot read before.json.gz" {
		t.Errorf("truncated manifests: %v", err)
	}
	noise := make([]byte, 2<<20)
	_, _ = rand.Read(noise) // never fails
	want.Manifests = []string{hex.EncodeToString(noise)}
	if _, err := want.secret("a"); !errors.Is(err, errLarge) {
		t.Errorf("manifests that are too large: %v", err)
	}
}

// TestJudgeTrial checks when a trial counts the manifests as healthy, and when the time of the
// trial is over.
func TestJudgeTrial(t *testing.T) {
	waits := outcome{waits: []string{"w"}}
	for _, c := range []struct {
		what          string
		finished      string
		wanted        Wanted
		out           outcome
		limit         time.Duration
		healthy, over bool
	}{
		{"healthy", "new", Wanted{Digest: "new"}, outcome{}, time.Minute, true, false},
		{"no longer healthy after it was healthy", "new", Wanted{Digest: "new"}, waits, time.Minute, false, false},
		{"the first manifests", "", Wanted{Digest: "new"}, waits, time.Minute, false, false},
		{"manifests that are rejected as a whole", "old", Wanted{Digest: "new", Refused: []string{"r"}}, waits, time.Minute, false, false},
		{"no time limit", "old", Wanted{Digest: "new"}, waits, 0, false, false},
		{"before the time limit", "old", Wanted{Digest: "new"}, waits, time.Hour, false, false},
		{"only former objects are left to delete", "old", Wanted{Digest: "new"}, outcome{waits: []string{"w"}, complete: true}, time.Minute, false, false},
		{"after the time limit", "old", Wanted{Digest: "new"}, waits, time.Minute, false, true},
	} {
		k := reconciler{}
		var healthy, over bool
		for i := range 10 {
			healthy, over = k.judgeTrial(c.wanted, &Record{Finished: c.finished}, c.out, c.limit, time.Unix(int64(i*10), 0))
		}
		if healthy != c.healthy || over != c.over {
			t.Errorf("%s: healthy %t, over %t", c.what, healthy, over)
		}
	}
}
