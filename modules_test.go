package orlop

import (
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
)

// parseModule reads a go.mod file.
func parseModule(t *testing.T, name string) *modfile.File {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	f, err := modfile.Parse(name, text, nil)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// selected returns the versions of the required modules with one of the prefixes, by
// path. If a replace line replaces a module, its version is that of the replacement.
func selected(f *modfile.File, prefixes ...string) map[string]string {
	versions := map[string]string{}
	has := func(path string) bool {
		return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(path, prefix) })
	}
	for _, r := range f.Require {
		if has(r.Mod.Path) {
			versions[r.Mod.Path] = r.Mod.Version
		}
	}
	for _, r := range f.Replace {
		if has(r.Old.Path) && versions[r.Old.Path] != "" {
			versions[r.Old.Path] = r.New.Version
		}
	}
	return versions
}

// TestOneEtcd checks that all modules of etcd have the same version, because its maintainers test
// only equal versions together.
func TestOneEtcd(t *testing.T) {
	const prefix, server = "go.etcd.io/etcd/", "go.etcd.io/etcd/server/v3"
	f := parseModule(t, "go.mod")
	versions := selected(f, prefix)
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
			t.Errorf("%s is replaced: the build uses the version of the replacement, not that of the require line", r.Old.Path)
		}
	}
}

// TestBaselineVersions checks that the baseline of the benchmarks has the same versions of
// Kubernetes, etcd and Go as the image. The container runtime needs no check, because the baseline
// uses that of the image (imager/components).
func TestBaselineVersions(t *testing.T) {
	const file = "test/bench/baseline/go.mod"
	ours, theirs := parseModule(t, "go.mod"), parseModule(t, file)
	toolchain := ""
	if theirs.Toolchain != nil {
		toolchain = theirs.Toolchain.Name
	}
	if toolchain != ours.Toolchain.Name {
		t.Errorf("%s: the toolchain is %q, but %q in the go.mod file of the image", file, toolchain, ours.Toolchain.Name)
	}
	prefixes := []string{"k8s.io/", "go.etcd.io/"}
	want, got := selected(ours, prefixes...), selected(theirs, prefixes...)
	for _, module := range []string{"k8s.io/kubernetes", "k8s.io/apiserver", "k8s.io/kubelet", "go.etcd.io/etcd/server/v3"} {
		if got[module] == "" {
			t.Errorf("%s: does not require %s", file, module)
		}
	}
	for module, version := range got {
		if want[module] != "" && want[module] != version {
			t.Errorf("%s: %s is %s, and %s in go.mod: run `go get %[2]s@%[4]s` and `go mod tidy` in the directory of the file; copy the replace lines", file, module, version, want[module])
		}
	}
}
