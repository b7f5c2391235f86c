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
	fakediscovery "k8s.io/client-go/discovery/fake"

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

// TestGoesBack: manifests that do not become healthy in time are taken back, until the document has others or somebody asks for another try.
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
		{"over", "old", Wanted{Digest: "new"}, waits, time.Minute, false, true},
	} {
		k := keeper{}
		var healthy, over bool
		for i := range 10 {
			healthy, over = k.weigh(c.wanted, Record{Finished: c.finished}, c.out, c.limit, time.Unix(int64(i*10), 0))
		}
		if healthy != c.healthy || over != c.over {
			t.Errorf("%s: healthy %t, over %t", c.what, healthy, over)
		}
	}
}
