package config

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

const twoDocuments = `# The machine.
kind: Machine
metadata:
  name: m1 # its name
spec:
  role: controlplane
  sysctls: {vm.swappiness: "1", net.core.somaxconn: "4096"}
  list: [a, b]
---
kind: Network
spec:
  links:
    - name: eth0
      dhcp4: true
`

func TestMerge(t *testing.T) {
	for _, c := range []struct{ name, patch, want string }{
		{"a field", "kind: Machine\nmetadata: {name: m2}", strings.Replace(twoDocuments, "name: m1 # its name", "name: m2", 1)},
		{"a field of a mapping on one line", `{kind: Machine, spec: {sysctls: {vm.swappiness: "2"}}}`,
			strings.Replace(twoDocuments, `  sysctls: {vm.swappiness: "1", net.core.somaxconn: "4096"}`, "  sysctls:\n    vm.swappiness: \"2\"\n    net.core.somaxconn: \"4096\"", 1)},
		{"a list as a whole", "kind: Machine\nspec: {list: [c]}", strings.Replace(twoDocuments, "[a, b]", "[c]", 1)},
		{"a removed field", "kind: Machine\nspec: {list: null, missing: null}", strings.Replace(twoDocuments, "  list: [a, b]\n", "", 1)},
		{"a new mapping, without its null field", "kind: Machine\nspec: {new: {a: 1, b: null}}", strings.Replace(twoDocuments, "  list: [a, b]\n", "  list: [a, b]\n  new: {a: 1}\n", 1)},
		{"a new document", "kind: Volume\nspec: {size: 1}", twoDocuments + "---\nkind: Volume\nspec: {size: 1}\n"},
		{"two documents", "kind: Network\nspec: {links: []}\n---\nkind: Machine\nmetadata: {name: m2}",
			strings.Replace(strings.Replace(twoDocuments, "name: m1 # its name", "name: m2", 1), "links:\n    - name: eth0\n      dhcp4: true", "links: []", 1)},
	} {
		got, err := Merge([]byte(twoDocuments), []byte(c.patch))
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %v\n%s\nwant\n%s", c.name, err, got, c.want)
		}
	}
	for patch, want := range map[string]string{
		"":                        "patch: is empty",
		"# nothing":               "patch: is empty",
		"spec: {}":                "patch: line 1: kind: missing",
		"[1]":                     "patch: line 1: expected a document with fields",
		"kind: {":                 "patch: line 2: cannot be read as YAML",
		"kind: A\nb: &x 1\nc: *x": "patch: line 2: anchors",
		"kind: A\nkind: B":        "patch: line 2: expected names of fields, each once",
		"kind: A\n[1]: 2":         "patch: line 2: expected names of fields",
		"kind: A\nb: " + strings.Repeat("[", 40) + strings.Repeat("]", 40): "patch: line 2: more than 32 levels",
	} {
		if _, err := Merge([]byte(twoDocuments), []byte(patch)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", patch, err, want)
		}
	}
}

// TestDiff checks that Merge with the output of Diff gives the new documents, and that the patch
// contains only changes.
func TestDiff(t *testing.T) {
	for _, c := range []struct{ name, after, patch string }{
		{"a removed comment", strings.Replace(twoDocuments, "# The machine.\n", "", 1), ""},
		{"a field", strings.Replace(twoDocuments, "m1 #", "m2 #", 1), "kind: Machine\nmetadata:\n  name: m2 # its name\n"},
		{"a removed field", strings.Replace(twoDocuments, "  list: [a, b]\n", "", 1), "kind: Machine\nspec:\n  list: null\n"},
		{"a field in a list", strings.Replace(twoDocuments, "dhcp4: true", "dhcp4: false", 1), "kind: Network\nspec:\n  links:\n    - name: eth0\n      dhcp4: false\n"},
		{"a new document", twoDocuments + "---\nkind: Volume\nspec: {size: 1}\n", "kind: Volume\nspec: {size: 1}\n"},
	} {
		patch, err := Diff([]byte(twoDocuments), []byte(c.after))
		if err != nil || string(patch) != c.patch {
			t.Errorf("%s: %v\n%s\nwant\n%s", c.name, err, patch, c.patch)
		}
		if len(patch) == 0 {
			continue
		}
		merged, err := Merge([]byte(twoDocuments), patch)
		if err != nil {
			t.Fatal(err)
		}
		if left, err := Diff([]byte(c.after), merged); err != nil || len(left) > 0 {
			t.Errorf("%s: the merged documents differ from the new ones by\n%s\n%v", c.name, left, err)
		}
	}
	for _, after := range []string{"kind: Machine\n", "kind: Machine\n---\nkind: Machine\n---\nkind: Network\n", "spec: 1\n"} {
		if _, err := Diff([]byte(twoDocuments), []byte(after)); err == nil {
			t.Errorf("Diff accepts %q", after)
		}
	}
}

// TestMergeKeepsSecrets checks that the difference between a redacted configuration and its edited
// copy is a patch that does not change secrets.
func TestMergeKeepsSecrets(t *testing.T) {
	c := example(t)
	shown := MarshalRedacted(c)
	edited := bytes.Replace(shown, []byte("memory: 768MiB"), []byte("memory: 1GiB"), 1)
	patch, err := Diff(shown, edited)
	if err != nil || string(patch) != "kind: Machine\nspec:\n  reserved:\n    memory: 1GiB\n" {
		t.Fatalf("%s, %v", patch, err)
	}
	merged, err := Merge(Marshal(c), patch)
	if err != nil {
		t.Fatal(err)
	}
	next, problems := Parse("", merged)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	if got := Changes(c, next); !slices.Equal(got, []string{"Machine.spec.reserved.memory: 768MiB → 1GiB"}) {
		t.Errorf("got %q", got)
	}
}

func FuzzMerge(f *testing.F) {
	f.Add([]byte(twoDocuments), []byte("kind: Machine\nspec: {list: null, sysctls: {a: 1}}"))
	f.Fuzz(func(t *testing.T, base, patch []byte) {
		merged, err := Merge(base, patch)
		if err != nil {
			return
		}
		if _, err := readDocuments(merged); err != nil {
			t.Errorf("the output of Merge cannot be parsed: %v", err)
		}
	})
}
