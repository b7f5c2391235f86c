package orlop

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
)

// TestOneEtcd checks that etcd's server, clients and protocol have the same version, which its
// maintainers have tested together. etcdutl, which reads and restores snapshots, may be older
// within the minor version, because module proxies do not have all of its versions.
func TestOneEtcd(t *testing.T) {
	const prefix, server, tools = "go.etcd.io/etcd/", "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/etcdutl/v3"
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
	if want == "" || len(versions) < 5 {
		t.Fatalf("go.mod names only %v of etcd", versions)
	}
	for module, version := range versions {
		same := version == want
		if module == tools {
			same = semver.MajorMinor(version) == semver.MajorMinor(want) && semver.Compare(version, want) <= 0
		}
		if !same {
			t.Errorf("%s is %s, and etcd's server is %s: `go get` all of them with one version", module, version, want)
		}
	}
	for _, r := range f.Replace {
		if strings.HasPrefix(r.Old.Path, prefix) {
			t.Errorf("%s is replaced: the build uses another version than the one above", r.Old.Path)
		}
	}
}
