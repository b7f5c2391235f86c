package orlop

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
)

// TestOneEtcd checks that all modules of etcd have the same version, which its maintainers have
// tested together.
func TestOneEtcd(t *testing.T) {
	const prefix, server = "go.etcd.io/etcd/", "go.etcd.io/etcd/server/v3"
	text, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	f, err := modfile.Parse("go.mod", text, nil)
	if err != nil {
		t.Fatal(err)
	}
	versions := map[string]string{}
	for _, r := range f.Require {
		if strings.HasPrefix(r.Mod.Path, prefix) {
			versions[r.Mod.Path] = r.Mod.Version
		}
	}
	want := versions[server]
	if want == "" || len(versions) < 6 {
		t.Fatalf("go.mod names only %v of etcd", versions)
	}
	for module, version := range versions {
		if version != want {
			t.Errorf("%s is %s, and etcd's server is %s: `go get` all of them with one version", module, version, want)
		}
	}
	for _, r := range f.Replace {
		if strings.HasPrefix(r.Old.Path, prefix) {
			t.Errorf("%s is replaced: the build uses another version than the one above", r.Old.Path)
		}
	}
}
