package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/imager/debian"
	"github.com/orlop-os/orlop/pkg/buildinfo"
)

// TestSBOMOfImages checks that the bill of materials contains an image archive of the profile and
// each program, with their digests, and each Debian package once.
func TestSBOMOfImages(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sbom.json")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	built := map[string]string{} // the test binary has build information, like each program
	for _, p := range programs {
		built[p.Name] = self
	}
	sum := strings.Repeat("ab", 32)
	lock := debian.Lock{Suite: "trixie"}
	for _, l := range staticLibraries {
		lock.Packages = append(lock.Packages, debian.Package{Want: l, Name: l, Version: "2.6", Arch: "amd64", SHA256: strings.Repeat("cd", 32)})
	}
	debs := &Archive{Lock: lock, used: map[string]debian.Package{"libc6": {Name: "libc6", Version: "2.41-12", Arch: "amd64"}}}
	if err := writeSBOM(file, buildinfo.Release{Version: "1.0.0", Profile: "test", BuildTime: 1}, built, []HashedFile{{Name: "images/agent.tar", SHA256: sum}}, debs); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(text), `"name": "images/agent.tar"`) || strings.Count(string(text), `"checksumValue": "`+sum+`"`) != 1 {
		t.Errorf("the document must have the archive and its digest once: %v, %s", err, text)
	}
	program, err := hashFile("self", self)
	if err != nil || strings.Count(string(text), program.SHA256) != len(programs) {
		t.Errorf("%v; the digest of a program is in the document %d times, want %d", err, strings.Count(string(text), program.SHA256), len(programs))
	}
	// a package of the image, and the libraries that are linked into runc
	for _, want := range []string{"libc6@2.41-12", "libc6-dev@2.6", "libseccomp-dev@2.6"} {
		if url := `"pkg:deb/debian/` + want + `?arch=amd64\u0026distro=trixie"`; strings.Count(string(text), url) != 1 {
			t.Errorf("the document must have the package %s once: %s", url, text)
		}
	}
}
