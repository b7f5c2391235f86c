package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/imager/debian"
)

// TestSBOMOfImages checks that the bill of materials contains an archive of the profile with its
// digest.
func TestSBOMOfImages(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sbom.json")
	m := &Manifest{Root: strings.Repeat("0", 64), Tools: map[string]string{"libc6-dev": "2.36-9"}}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	built := map[string]string{} // any program with build information
	for _, p := range programs {
		built[p.Name] = self
	}
	sum := strings.Repeat("ab", 32)
	debs := &Archive{Lock: debian.Lock{Suite: "trixie"}, used: map[string]debian.Package{"libc6": {Name: "libc6", Version: "2.41-12", Arch: "amd64"}}}
	if err := writeSBOM(file, m, built, []HashedFile{{Name: "images/agent.tar", SHA256: sum}}, debs, 1); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(text), `"name": "images/agent.tar"`) || strings.Count(string(text), `"checksumValue": "`+sum+`"`) != 1 {
		t.Errorf("%v, %s", err, text)
	}
	// a package of the image has a suite, a library of this computer's gcc has none
	for _, want := range []string{`"pkg:deb/debian/libc6@2.41-12?arch=amd64\u0026distro=trixie"`, `"pkg:deb/debian/libc6-dev@2.36-9?arch=amd64"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the document has no package %s: %s", want, text)
		}
	}
}
