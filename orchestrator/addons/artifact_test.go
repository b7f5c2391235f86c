package addons

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/pkg/artifact"
	"github.com/orlop-os/orlop/pkg/artifact/artifacttest"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestArtifact checks that the files of an artifact count as manifests of the document. While the
// artifact cannot be read, the add-on applies and deletes nothing.
func TestArtifact(t *testing.T) {
	shelf := artifacttest.Source{}
	const text = "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}"
	sum, wrong := shelf.Put(text, "{apiVersion: v1, kind: ConfigMap, metadata: {name: b}}"), shelf.Put("{apiVersion: v1}")
	m := &manager{artifacts: artifact.Store{Dir: t.TempDir(), Group: os.Getgid()}}
	a := nodespec.Addon{Name: "web", Namespace: "web", Artifact: nodespec.Artifact{Name: "registry.example.com/web@sha256:" + sum, SHA256: sum}}
	refused := func(what, want string) {
		t.Helper()
		w, err := m.want(a, false)
		stays := task{addon: &a, wanted: w, record: Record{Inventory: []Item{{Version: "v1", Kind: "ConfigMap", Name: "old"}}}}
		if err != nil || len(w.Refused) != 1 || !strings.Contains(w.Refused[0], want) || len(stays.toDelete()) > 0 {
			t.Errorf("%s: %+v, %v; want %q", what, w, err, want)
		}
	}
	refused("an artifact that is not in the store", "web@sha256:"+sum+": open ")
	a.Artifact.Missing = "it was not fetched"
	refused("an artifact that machined reports as missing", "artifact: it was not fetched")
	a.Artifact.Missing = ""
	for _, s := range []string{sum, wrong} {
		if err := m.artifacts.Fetch(t.Context(), s, shelf); err != nil {
			t.Fatal(err)
		}
	}
	files, err := m.files(a)
	if err != nil {
		t.Fatal(err)
	}
	w := Read(a, files, known)
	if len(w.Objects) != 2 || len(w.Refused) > 0 || w.Objects[1].String() != "ConfigMap web/b" {
		t.Errorf("the manifests of the artifact are read as %+v", w)
	}
	inline := nodespec.Addon{Name: "web", Namespace: "web", Manifests: []string{text}}
	if here, there := Read(inline, nil, known), Read(nodespec.Addon{Name: "web", Namespace: "web"}, files[:1], known); here.Digest != there.Digest {
		t.Errorf("the same text has the digest %s in the document, and %s in an artifact: its hooks would run again", here.Digest, there.Digest)
	}
	twice := a
	twice.Manifests = []string{text}
	if w := Read(twice, files, known); len(w.Refused) != 1 || w.Refused[0] != "ConfigMap web/a: occurs twice" {
		t.Errorf("the same object in the document and in the artifact: %q", w.Refused)
	}
	other := a
	other.Artifact.SHA256 = wrong
	if files, err = m.files(other); err != nil {
		t.Fatal(err)
	}
	if w := Read(other, files, known); len(w.Refused) != 1 || !strings.HasPrefix(w.Refused[0], "artifact: layer 1: ") {
		t.Errorf("an artifact with a file that is no object: %q", w.Refused)
	}
	file := filepath.Join(m.artifacts.Dir, sum)
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused("a damaged artifact", "is damaged")
}
