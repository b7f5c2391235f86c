package buildinfo

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRead checks the errors for a missing file, an invalid description, and a description without
// a version.
func TestRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "release.json")
	for _, c := range []struct{ text, want string }{ // part of the error
		{"", "no such file"}, {"{", "unexpected end"}, {"{}", "it has no version"}, {`{"version": "2.0.0"}`, ""},
	} {
		if c.text != "" {
			if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		r, err := Read(file)
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "release: cannot read ")) {
			t.Errorf("%q: %v", c.text, err)
		}
		if err == nil && r.Version != "2.0.0" {
			t.Errorf("%+v", r)
		}
	}
}
