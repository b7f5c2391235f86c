package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSBOMOfImages checks that the bill of materials contains an archive of the profile with its
// digest.
func TestSBOMOfImages(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sbom.json")
	m := &Manifest{Root: strings.Repeat("0", 64), Tools: map[string]string{}}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	built := map[string]string{} // any program with build information
	for _, p := range programs {
		built[p.Name] = self
	}
	sum := strings.Repeat("ab", 32)
	if err := writeSBOM(file, m, built, []HashedFile{{Name: "images/agent.tar", SHA256: sum}}, nil, 1); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(text), `"name": "images/agent.tar"`) || strings.Count(string(text), `"checksumValue": "`+sum+`"`) != 1 {
		t.Errorf("%v, %s", err, text)
	}
}
