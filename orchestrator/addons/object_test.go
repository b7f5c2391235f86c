package addons

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestTwice checks that a field which occurs twice is an error with its line, and that the error
// contains no value.
func TestTwice(t *testing.T) {
	const first = "# a comment\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: one}\n---\n"
	for text, want := range map[string]string{
		"kind: Secret\ndata: {a: hunter2}\ndata: {}":                        "line 3 has a field that occurs twice in its mapping",
		first + "kind: Secret\nstringData:\n  a: hunter2\n  a: hunter2\n":   "line 10 has a field that occurs twice in its mapping",
		"kind: List\r\nitems:\r\n- kind: A\r\n  kind: A\r\n":                "line 4 has a field that occurs twice in its mapping",
		first + `{kind: A, kind: B}`:                                        "line 7 has a field that occurs twice in its mapping",
		"{0x1: a, 1: b}":                                                    "the document that begins in line 1 has a field that occurs twice",
		first + "a: &a {x: 1}\nc: &c {<<: *a}\nb: {x: 2, <<: [*c]}\n":       "line 9 has a merge key (<<) after a field that it replaces; write the merge key first",
		first + "{\"a\": 1}\n{\"data\": {\"a\": \"hunter2\",\n\"a\": 2}}\n": `the JSON value that ends in line 9: duplicate field "data.a"`,
	} {
		_, err := parse(text)
		if err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	// The same name may occur in several mappings.
	if all, err := parse(first + "kind: ConfigMap\napiVersion: v1\nmetadata: {name: two, labels: {a: b}}\ndata: {a: b}\n"); err != nil || len(all) != 2 {
		t.Errorf("the same name in several mappings: %v, %v", all, err)
	}
}

// TestMerged checks that a mapping may override a merged field, and that a later merge key may add
// fields.
func TestMerged(t *testing.T) {
	all, err := parse(`
apiVersion: v1
kind: ConfigMap
metadata: {name: one, labels: &common {app: web, tier: front}, annotations: {<<: *common, tier: back}}
data: {a: b, <<: [*common, *common]}
`)
	if err != nil || len(all) != 1 {
		t.Fatalf("%v, %v", all, err)
	}
	notes := all[0].GetAnnotations()
	data, _, err := unstructured.NestedStringMap(all[0].Object, "data")
	if notes["app"] != "web" || notes["tier"] != "back" || data["a"] != "b" || data["app"] != "web" || err != nil {
		t.Errorf("annotations %v, data %v, %v", notes, data, err)
	}
}
