package addons

import "testing"

// TestTwice checks that a field which occurs twice is an error with its line, and that the error
// contains no value.
func TestTwice(t *testing.T) {
	const first = "# a comment\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: one}\n---\n"
	for text, want := range map[string]string{
		"kind: Secret\ndata: {a: hunter2}\ndata: {}":                        "line 3 has a field that occurs twice in its mapping",
		first + "kind: Secret\nstringData:\n  a: hunter2\n  a: hunter2\n":   "line 10 has a field that occurs twice in its mapping",
		"kind: List\r\nitems:\r\n- kind: A\r\n  kind: A\r\n":                "line 4 has a field that occurs twice in its mapping",
		first + `{kind: A, kind: B}`:                                        "line 7 has a field that occurs twice in its mapping",
		first + "{\"a\": 1}\n{\"data\": {\"a\": \"hunter2\",\n\"a\": 2}}\n": `the JSON value that ends in line 9: duplicate field "data.a"`,
	} {
		_, err := parse(text)
		if err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	// the same names in several mappings
	if all, err := parse(first + "kind: ConfigMap\napiVersion: v1\nmetadata: {name: two, labels: {a: b}}\ndata: {a: b}\n"); err != nil || len(all) != 2 {
		t.Errorf("%v, %v", all, err)
	}
}
