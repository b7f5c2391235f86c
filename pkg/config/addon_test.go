package config

import (
	"slices"
	"strings"
	"testing"
)

// addonDocuments returns the documents of a machine in a cluster with two add-ons.
func addonDocuments(t *testing.T) string {
	t.Helper()
	return expand(t, values(t), `apiVersion: orlop.dev/v1alpha1
kind: Machine
metadata: {name: a}
spec: {role: controlplane}
---
apiVersion: orlop.dev/v1alpha1
kind: Cluster
metadata: {name: c}
spec: $CLUSTER
---
apiVersion: orlop.dev/v1alpha1
kind: Addon
metadata: {name: one}
spec:
  manifests:
    - |
      # Source: one/templates/secret.yaml
      apiVersion: v1
      kind: Secret
      metadata: {name: s}
      stringData: {word: correct-horse}
      ---
      ---
      # nothing
    - |

        indented: {at: first}
        apiVersion: example.com/v1
        kind: Thing
        metadata: {name: s}
  scope: {namespaces: [web]}
  rights: {namespaceAdmin: true}
---
apiVersion: orlop.dev/v1alpha1
kind: Addon
metadata: {name: two}
spec:
  manifests: ["{apiVersion: v1, kind: Namespace, metadata: {name: web}}"]
  scope: {cluster: true}
  rights: {clusterAdmin: true}
  requires: {kubernetes: ">= 1.36"}
`)
}

// TestAddons checks that several Addon documents are parsed, printed and compared by name, and that
// no output contains a manifest.
func TestAddons(t *testing.T) {
	before, problems := Parse("", []byte(addonDocuments(t)))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	again, problems := Parse("", Marshal(before))
	if len(problems) > 0 || !Equal(before, again) {
		t.Fatalf("%v %q", problems, Changes(before, again))
	}
	if strings.Contains(string(MarshalRedacted(before)), "correct-horse") || strings.Contains(strings.Join(Changes(nil, before), "\n"), "correct-horse") {
		t.Error("the output contains a Secret of a manifest")
	}
	if got := before.Addons[1].Spec.Requires.Kubernetes; got.Version() != "1.36" || got.String() != ">=1.36" {
		t.Errorf("requires %s", got)
	}
	text := addonDocuments(t)
	head, addons, _ := strings.Cut(text, "---\napiVersion: orlop.dev/v1alpha1\nkind: Addon\n")
	one, two, _ := strings.Cut(addons, "---\napiVersion: orlop.dev/v1alpha1\nkind: Addon\n")
	const separator = "---\napiVersion: orlop.dev/v1alpha1\nkind: Addon\n"
	swapped, problems := Parse("", []byte(head+separator+two+separator+strings.Replace(one, "correct-horse", "staple", 1)))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	// Other values of the test are random: compare only the add-ons.
	changes := slices.DeleteFunc(Changes(before, swapped), func(line string) bool { return !strings.HasPrefix(line, "Addon") })
	if want := []string{`Addon["one"].spec.manifests[0]: (changed)`}; !slices.Equal(changes, want) {
		t.Errorf("changes %q, want %q", changes, want)
	}
}

func TestMergeAddons(t *testing.T) {
	const base = "kind: Machine\n---\nkind: Addon\nmetadata: {name: one}\nspec: {a: 1}\n---\nkind: Addon\nmetadata: {name: two}\nspec: {a: 1}\n"
	for name, after := range map[string]string{
		"one is changed":  strings.Replace(base, "a: 1", "a: 2", 1),
		"one is added":    base + "---\nkind: Addon\nmetadata: {name: three}\nspec: {a: 1}\n",
		"one is removed":  "kind: Machine\n---\nkind: Addon\nmetadata: {name: two}\nspec: {a: 1}\n",
		"all are removed": "kind: Machine\n",
	} {
		patch, err := Diff([]byte(base), []byte(after))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := Merge([]byte(base), patch)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if left, err := Diff(got, []byte(after)); err != nil || len(left) > 0 {
			t.Errorf("%s: the patch\n%s\nmakes\n%s (%v)", name, patch, got, err)
		}
	}
}
