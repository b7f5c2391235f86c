package addons

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	clientfake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// row is a manager of several add-ons, each with one ConfigMap. The objects of the add-ons are in
// fakes, and their records are in a fake API server.
type row struct {
	*testing.T
	m       *manager
	client  *clientfake.Clientset
	fakes   map[string]*fake
	refused map[string]error // errors of writing a record
	now     time.Time
}

func newRow(t *testing.T, names ...string) *row {
	standard := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceDefault}}
	r := &row{T: t, client: clientfake.NewClientset(standard), fakes: map[string]*fake{}, refused: map[string]error{}, now: time.Unix(1e9, 0)}
	r.m = &manager{spec: nodespec.Spec{Node: nodespec.Node{Name: "n"}}, client: r.client, wanted: map[string]Wanted{}, states: map[string]*addonState{}}
	for _, name := range names {
		a := nodespec.Addon{Name: name, Namespace: "default", Manifests: []string{fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: %s}}", name)}}
		f := newFake()
		r.m.all, r.fakes[name], r.m.wanted[name] = append(r.m.all, a), f, Read(a, nil, known)
		r.m.states[name] = &addonState{reconciler: reconciler{name: name, as: f, remover: f, applied: map[key]appliedObject{}}}
	}
	r.client.PrependReactor("*", "configmaps", func(asked clienttesting.Action) (bool, runtime.Object, error) {
		if writes, ok := asked.(clienttesting.CreateAction); ok { // updates are CreateActions, too
			if err := r.refused[writes.GetObject().(*corev1.ConfigMap).Name]; err != nil {
				return true, nil, err
			}
		}
		return false, nil, nil
	})
	return r
}

// round makes a round, and returns the add-ons that have applied objects.
func (r *row) round() (did string, err error) {
	r.Helper()
	r.now = r.now.Add(time.Hour)
	r.m.changed = true
	err = r.m.reconcileDue(r.Context(), r.now, true)
	var all []string
	for _, a := range r.m.all {
		if f := r.fakes[a.Name]; len(f.done) > 0 {
			all, f.done = append(all, a.Name), nil
		}
	}
	return strings.Join(all, " "), err
}

func (r *row) record(name string) *corev1.ConfigMap {
	r.Helper()
	m, err := r.client.CoreV1().ConfigMaps(Namespace).Get(r.Context(), name, metav1.GetOptions{})
	if err != nil {
		r.Fatal(err)
	}
	return m
}

// TestIndependentAddons rejects the record of one add-on. The other add-ons are reconciled
// nevertheless, and only when they are due. If the API server does not answer, the round ends.
func TestIndependentAddons(t *testing.T) {
	r := newRow(t, "a", "b", "c")
	r.refused["b"] = errors.New("connection refused")
	did, err := r.round()
	if did != "a" || !errors.Is(err, errUnavailable) || !r.m.changed {
		t.Errorf("the API server does not answer: %q, %v; changed %t", did, err, r.m.changed)
	}
	r.refused["b"] = apierrors.NewRequestEntityTooLargeError("too long")
	did, err = r.round()
	if did != "a c" || err == nil || errors.Is(err, errUnavailable) || !strings.Contains(err.Error(), "record of the add-on b: cannot create: ") || r.m.changed {
		t.Errorf("the record of b is rejected: %q, %v; changed %t", did, err, r.m.changed)
	}
	if next := r.m.states["b"].next; next.After(r.now) {
		t.Errorf("b is due at %v, want: in the next round", next)
	}
	if len(r.fakes["b"].objects) > 0 {
		t.Error("b was applied although its record was rejected")
	}
	delete(r.refused, "b")
	if did, err = r.round(); did != "a b c" || err != nil {
		t.Errorf("the record of b is accepted: %q, %v", did, err)
	}
}

// TestUnreadable checks that a record that cannot be decoded stops only its own add-on, and that
// the record stays as it is, also after the removal of the add-on's document.
func TestUnreadable(t *testing.T) {
	r := newRow(t, "a", "b", "c")
	if did, err := r.round(); did != "a b c" || err != nil {
		t.Fatal(did, err)
	}
	whole := r.record("b")
	cut := whole.DeepCopy()
	cut.Data[fieldRecord] = strings.Replace(cut.Data[fieldRecord], `"kind":`, `kind:`, 1)
	write := func(to *corev1.ConfigMap) {
		t.Helper()
		if _, err := r.client.CoreV1().ConfigMaps(Namespace).Update(t.Context(), to, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	write(cut)
	held := func(what string) {
		t.Helper()
		did, err := r.round()
		if did != "a c" || err != nil {
			t.Errorf("%s: %q, %v", what, did, err)
		}
		if got := r.record("b").Data[fieldRecord]; got != cut.Data[fieldRecord] {
			t.Errorf("%s: the record is now %s", what, got)
		}
		detail := r.m.detail()
		for _, want := range []string{"2 of 3 add-ons are ready; b: Failed, ", "ConfigMap orlop-addons/b: cannot decode record.json", "kubectl -n orlop-addons edit configmap b", "no longer contains stay"} {
			if !strings.Contains(detail, want) {
				t.Errorf("%s: %q is not in: %s", what, want, detail)
			}
		}
	}
	held("with a document")
	all := r.m.all
	r.m.all = []nodespec.Addon{all[0], all[2]}
	held("without a document")
	r.m.all = all
	write(whole)
	if did, err := r.round(); did != "a b c" || err != nil || r.m.detail() != "3 of 3 add-ons are ready" {
		t.Errorf("after the repair of the record: %q, %v: %s", did, err, r.m.detail())
	}
}

// TestMaxObjects checks that too many objects are rejected, and that the record of the maximum
// number of objects with the longest names fits into a ConfigMap.
func TestMaxObjects(t *testing.T) {
	label, name := strings.Repeat("l", 63), strings.Repeat("n", 249)
	one := func(i int) string {
		return fmt.Sprintf(`{"apiVersion": "%s/%s", "kind": "%s", "metadata": {"name": "%s%04d"}}`, strings.Repeat("g", 253), label, label, name, i)
	}
	var text strings.Builder
	for i := range maxObjects {
		fmt.Fprintf(&text, "---\n%s\n", one(i))
	}
	kinds := func(_ schema.GroupVersionKind) (Kind, bool) { return Kind{Resource: label, Namespaced: true}, true }
	a := nodespec.Addon{Name: "web", Namespace: label, Manifests: []string{text.String()}}
	w := Read(a, nil, kinds)
	if len(w.Refused) > 0 || len(w.Objects) != maxObjects {
		t.Fatalf("%d objects: %.300q", len(w.Objects), w.Refused)
	}
	var r Record
	if size := r.maxSize(Union(nil, w.Objects), w.Objects); size > maxRecord {
		t.Errorf("the record has %d bytes, the limit is %d", size, maxRecord)
	}
	r.Inventory = Union(nil, w.Objects)
	much := make([]string, maxObjects)
	for i := range much {
		much[i] = strings.Repeat("x", maxText)
	}
	m, err := encode("web", r, State{Rights: much, Problems: much, Notes: much})
	if err != nil {
		t.Fatal(err)
	}
	size := 0
	for _, value := range m.Data {
		size += len(value)
	}
	if size > corev1.MaxSecretSize { // the limit of a ConfigMap, too (ValidateConfigMap)
		t.Errorf("the ConfigMap has %d bytes, the limit is %d", size, corev1.MaxSecretSize)
	}
	if got := m.Data[fieldNotes]; !strings.HasSuffix(got, "\nand 847 more") {
		t.Errorf("the notes end with %q", got[len(got)-20:])
	}
	a.Manifests = append(a.Manifests, one(maxObjects))
	if w = Read(a, nil, kinds); len(w.Refused) != 1 || w.Refused[0] != "has 1001 objects, more than the limit of 1000; none is applied; divide it into several add-ons" {
		t.Errorf("too many objects: %.300q", w.Refused)
	}
}

// TestMaxRecord checks that objects for which the record has no space are reported before any of
// them is created, and that the present objects can be deleted.
func TestMaxRecord(t *testing.T) {
	s := newSite(t)
	s.addon.Manifests = []string{"{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}"}
	for i := range 9000 {
		s.record.Inventory = append(s.record.Inventory, Item{Version: "v1", Kind: "ConfigMap", Resource: "configmaps", Namespace: "web", Name: fmt.Sprintf("old%05d", i)})
	}
	if text, err := json.Marshal(s.record); err != nil || len(text) < maxRecord {
		t.Fatalf("%d bytes, %v", len(text), err)
	}
	done, out := s.run()
	if done != "" || len(out.problems) != 1 || !strings.Contains(out.problems[0], "it has 9000 objects, and 9001 with the wanted objects") || len(s.record.Inventory) != 9000 {
		t.Errorf("did %s, problems %q, inventory of %d", done, out.problems, len(s.record.Inventory))
	}
	s.addon.Manifests = nil
	if _, out = s.run(); len(out.problems) > 0 || len(s.record.Inventory) > 0 {
		t.Errorf("problems %q, inventory of %d", out.problems, len(s.record.Inventory))
	}
}

// TestNamespaceIsGone checks that the objects of a deleted namespace count as deleted, and do not
// prevent the removal of the add-on.
func TestNamespaceIsGone(t *testing.T) {
	r := newRow(t, "a")
	r.m.all[0].Manifests = []string{"{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: x}}"}
	r.m.wanted["a"] = Read(r.m.all[0], nil, known)
	if did, err := r.round(); did != "a" || err != nil {
		t.Fatal(did, err)
	}
	r.fakes["a"].done, r.m.all = nil, nil // the fake API server has no namespace x
	// The record is deleted only after the rights were revoked, so two rounds are necessary.
	for range 2 {
		if _, err := r.round(); err != nil {
			t.Fatal(err)
		}
	}
	if did := r.fakes["a"].done; len(did) > 0 {
		t.Errorf("operations in a deleted namespace: %q", did)
	}
	if _, err := r.client.CoreV1().ConfigMaps(Namespace).Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the record of the add-on still exists: %v", err)
	}
}

// TestUnknownKinds checks that all add-ons find a new kind, even if other kinds are still unknown.
func TestUnknownKinds(t *testing.T) {
	s := &oneKind{}
	server := httptest.NewServer(s)
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	m := &manager{kinds: newKinds(client), wanted: map[string]Wanted{}}
	now := time.Unix(1e9, 0)
	look := func() (unknown []int) {
		t.Helper()
		refreshed := m.hasUnknown() && m.kinds.refresh(now)
		for _, kind := range []string{"Never", "Widget"} {
			w, err := m.want(nodespec.Addon{Name: kind, Manifests: []string{"{apiVersion: example.org/v1, kind: " + kind + ", metadata: {name: a}}"}}, refreshed)
			if err != nil {
				t.Fatal(err)
			}
			unknown = append(unknown, len(w.Unknown))
		}
		now = now.Add(refreshInterval)
		return unknown
	}
	if got := look(); !slices.Equal(got, []int{1, 1}) {
		t.Fatalf("before Widget is served, the numbers of unknown objects are %v", got)
	}
	s.versions = []string{"v1"}
	if got := look(); !slices.Equal(got, []int{1, 0}) {
		t.Errorf("after Widget is served, the numbers of unknown objects are %v", got)
	}
}
