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

// give changes what the document of an add-on says.
func (r *row) give(name string, manifests ...string) {
	r.Helper()
	i := slices.IndexFunc(r.m.all, func(a nodespec.Addon) bool { return a.Name == name })
	r.m.all[i].Manifests = manifests
	r.m.wanted[name] = Read(r.m.all[i], nil, known)
}

// after makes rounds, one every backoff, until so much time has gone by.
func (r *row) after(d time.Duration) {
	r.Helper()
	for end := r.now.Add(d); r.now.Before(end); {
		r.now = r.now.Add(backoff)
		if err := r.m.due(r.Context(), r.now, true); err != nil {
			r.Fatal(err)
		}
	}
}

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

// TestGoesBack: manifests that do not become healthy in time are taken back, until the document has
// others or somebody asks for another try.
func TestGoesBack(t *testing.T) {
	r := newRow(t, "a", "b")
	resources := r.client.Discovery().(*fakediscovery.FakeDiscovery)
	resources.Resources = []*metav1.APIResourceList{{GroupVersion: "v1", APIResources: []metav1.APIResource{
		{Name: "configmaps", Kind: "ConfigMap", Namespaced: true}, {Name: "pods", Kind: "Pod", Namespaced: true},
	}}}
	r.m.kinds = newKinds(r.client)
	r.m.all[0].Within = 5 * time.Minute
	r.give("a", bad)
	r.after(20 * time.Minute)
	if !r.has("a", "Pod", "never", "") || r.m.memories["a"].state.Phase != Applying {
		t.Fatalf("the first manifests have nothing to go back to: %s", r.m.detail())
	}
	r.give("a", good)
	r.after(2 * backoff)
	if r.has("a", "Pod", "never", "") || !r.has("a", "ConfigMap", "c", "one") || r.m.memories["a"].state.Phase != Ready {
		t.Fatal(r.m.detail())
	}
	if s, err := r.client.CoreV1().Secrets(Namespace).Get(t.Context(), "a", metav1.GetOptions{}); err != nil || s.Annotations[keptDigest] != r.m.wanted["a"].Digest {
		t.Fatalf("nothing is kept: %v, %v", s, err)
	}

	r.give("a", bad)
	r.after(4 * time.Minute)
	if !r.has("a", "ConfigMap", "c", "two") || !r.has("a", "Pod", "never", "") {
		t.Fatalf("its time is not over: %s", r.m.detail())
	}
	r.now = r.now.Add(time.Hour) // nobody looked
	r.after(backoff)
	if !r.has("a", "Pod", "never", "") {
		t.Fatal("time without a look counted")
	}
	back := func(when string) {
		t.Helper()
		r.after(2 * time.Minute)
		if !r.has("a", "ConfigMap", "c", "one") || r.has("a", "Pod", "never", "") {
			t.Errorf("%s: did not go back: %s", when, r.m.detail())
		}
		for _, want := range []string{"1 of 2 add-ons are ready; a: Failed, 1 of 1 objects healthy: its manifests ", " did not become healthy in time (Pod default/never: is not ready yet), and those from before are there again"} {
			if !strings.Contains(r.m.detail(), want) {
				t.Errorf("%s: %q is not in %s", when, want, r.m.detail())
			}
		}
	}
	back("in time")
	r.m.memories = map[string]*remembered{"a": r.fresh("a"), "b": r.fresh("b")}
	back("and others lead")
	delete(r.fakes["a"].objects, key{"", "ConfigMap", "default", "c"})
	back("healed")

	m := r.record("a")
	m.Annotations = map[string]string{retryAnnotation: "now"}
	if _, err := r.client.CoreV1().ConfigMaps(Namespace).Update(t.Context(), m, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.after(backoff)
	if !r.has("a", "Pod", "never", "") || !r.has("a", "ConfigMap", "c", "two") {
		t.Errorf("not tried again: %s", r.m.detail())
	}
	if m := r.record("a"); len(m.Annotations) > 0 {
		t.Errorf("it would be tried for ever: %v", m.Annotations)
	}
	r.after(5 * time.Minute)
	back("the second time")

	better := strings.Replace(good, "one", "three", 1)
	r.give("a", better)
	r.after(backoff)
	if !strings.Contains(r.m.detail(), "all is healthy, and has to be so for another ") {
		t.Errorf("it is believed at once: %s", r.m.detail())
	}
	r.after(steady + backoff)
	if !r.has("a", "ConfigMap", "c", "three") || r.m.detail() != "2 of 2 add-ons are ready" {
		t.Errorf("others: %s", r.m.detail())
	}
	if strings.Contains(r.record("a").Data[fieldRecord], "withdrawn") {
		t.Errorf("what was withdrawn stays in the record: %s", r.record("a").Data[fieldRecord])
	}
	r.m.all[0].Within = 0
	r.give("a", bad)
	r.after(time.Hour)
	if !r.has("a", "Pod", "never", "") {
		t.Error("went back, and should never")
	}

	r.m.all = r.m.all[1:]
	r.after(2 * time.Minute)
	if _, err := r.client.CoreV1().Secrets(Namespace).Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the add-on is gone, what was kept of it is not: %v", err)
	}
}

// TestNoWayBack: without what was kept, what was healthy stays as it is, says so, and no other
// add-on is concerned; others that the document states let the same be tried again.
func TestNoWayBack(t *testing.T) {
	r := newRow(t, "a", "b")
	r.m.kinds = newKinds(r.client)
	r.client.Discovery().(*fakediscovery.FakeDiscovery).Resources = []*metav1.APIResourceList{{GroupVersion: "v1", APIResources: []metav1.APIResource{
		{Name: "configmaps", Kind: "ConfigMap", Namespaced: true}, {Name: "pods", Kind: "Pod", Namespaced: true},
	}}}
	r.m.all[0].Within = time.Minute
	r.give("a", good)
	r.after(backoff)
	r.give("a", bad)
	r.after(5 * time.Minute)
	if r.has("a", "Pod", "never", "") || !r.has("a", "ConfigMap", "c", "one") {
		t.Fatalf("did not go back: %s", r.m.detail())
	}
	var refuse error
	r.client.PrependReactor("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) { return refuse != nil, nil, refuse })
	refuse = apierrors.NewInternalError(errors.New("no key"))
	r.m.copies = nil
	delete(r.fakes["b"].objects, key{"", "ConfigMap", "default", "b"})
	r.after(2 * time.Minute)
	for _, want := range []string{"1 of 2 add-ons are ready", "are wanted again", "what was healthy before stays as it is: ", "no key"} {
		if !strings.Contains(r.m.detail(), want) {
			t.Errorf("%q is not in %s", want, r.m.detail())
		}
	}
	if !r.has("a", "ConfigMap", "c", "one") || !r.has("b", "ConfigMap", "b", "") {
		t.Error("what was healthy was touched, or another add-on was not healed")
	}
	refuse = nil
	r.after(2 * time.Minute)
	s, err := r.client.CoreV1().Secrets(Namespace).Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	forged, err := kept{Digest: s.Annotations[keptDigest], Namespace: "default", Manifests: []string{bad}}.secret("a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.client.CoreV1().Secrets(Namespace).Update(t.Context(), forged, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.after(2 * reapply)
	if !strings.Contains(r.m.detail(), "has other manifests than those that were healthy") || r.has("a", "Pod", "never", "") {
		t.Errorf("what somebody else put there is believed: %s", r.m.detail())
	}
	r.m.all[0].Rights.NamespaceAdmin = true
	r.after(backoff)
	if !r.has("a", "Pod", "never", "") {
		t.Errorf("other rights, and it is not tried again: %s", r.m.detail())
	}
}

// TestFailedHookRunsAgain: when manifests are tried again, and once for each try.
func TestFailedHookRunsAgain(t *testing.T) {
	s := newSite(t)
	s.returns = true
	s.addon.Manifests = []string{"{apiVersion: v1, kind: ConfigMap, metadata: {name: c}}"}
	s.expect("the first", "apply ConfigMap web/c", 0, 0)
	s.addon.Manifests[0] += "\n---\n{apiVersion: batch/v1, kind: Job, metadata: {name: migrate, annotations: {helm.sh/hook: pre-upgrade}}}"
	s.asleep["Job web/migrate"] = true
	s.expect("the hook", "apply Job web/migrate", 0, 1)
	fail := func() {
		job := s.objects[key{"batch", "Job", "web", "migrate"}]
		_ = unstructured.SetNestedSlice(job.Object, []any{map[string]any{"type": "Failed", "status": "True"}}, "status", "conditions")
	}
	fail()
	s.expect("it has failed", "", 1, 0)
	s.record.Running, s.record.Done = "", nil // what another try begins with
	s.expect("another try", "delete Job web/migrate", 0, 1)
	s.expect("another try", "apply Job web/migrate", 0, 1)
	fail()
	s.expect("it has failed again", "", 1, 0)
	s.expect("it stays", "", 1, 0)
}

// fresh is what a process that has just started remembers.
func (r *row) fresh(name string) *remembered {
	return &remembered{keeper: keeper{name: name, as: r.fakes[name], remover: r.fakes[name], applied: map[key]mark{}}}
}

// TestKept: what is kept comes out as it went in, and what has no room says so.
func TestKept(t *testing.T) {
	want := kept{Digest: "d", Namespace: "n", Manifests: []string{good, bad}}
	s, err := want.secret("a")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := unpack(s); err != nil || got.Digest != "d" || got.Namespace != "n" || !slices.Equal(got.Manifests, want.Manifests) {
		t.Errorf("%+v, %v", got, err)
	}
	s.Data[keptField] = s.Data[keptField][:20]
	if _, err := unpack(s); err == nil || err.Error() != "Secret orlop-addons/a: before.json.gz cannot be read" {
		t.Errorf("cut off: %v", err)
	}
	noise := make([]byte, 2<<20)
	_, _ = rand.Read(noise) // never fails
	want.Manifests = []string{hex.EncodeToString(noise)}
	if _, err := want.secret("a"); !errors.Is(err, errLarge) {
		t.Errorf("too large: %v", err)
	}
}

// TestWeigh: what a pass means for manifests as a whole.
func TestWeigh(t *testing.T) {
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
		{"was healthy once", "new", Wanted{Digest: "new"}, waits, time.Minute, false, false},
		{"the first", "", Wanted{Digest: "new"}, waits, time.Minute, false, false},
		{"refused as a whole", "old", Wanted{Digest: "new", Refused: []string{"r"}}, waits, time.Minute, false, false},
		{"never", "old", Wanted{Digest: "new"}, waits, 0, false, false},
		{"not yet", "old", Wanted{Digest: "new"}, waits, time.Hour, false, false},
		{"only the ones before are left", "old", Wanted{Digest: "new"}, outcome{waits: []string{"w"}, there: true}, time.Minute, false, false},
		{"over", "old", Wanted{Digest: "new"}, waits, time.Minute, false, true},
	} {
		k := keeper{}
		var healthy, over bool
		for i := range 10 {
			healthy, over = k.weigh(c.wanted, &Record{Finished: c.finished}, c.out, c.limit, time.Unix(int64(i*10), 0))
		}
		if healthy != c.healthy || over != c.over {
			t.Errorf("%s: healthy %t, over %t", c.what, healthy, over)
		}
	}
}
