package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/imager/debian"
	"github.com/orlop-os/orlop/pkg/bundle"
)

// checkProvenance verifies the provenance with the public keys and the statement of the bundle. It
// checks that the provenance has the digests of all artifacts, pinned packages and inputs.
func checkProvenance(t *testing.T, out, keys string) {
	var m Manifest
	readJSON(t, filepath.Join(out, "manifest.json"), &m)
	envelope, err := os.ReadFile(filepath.Join(out, provenanceFile))
	if err != nil {
		t.Fatal(err)
	}
	trust, of := trustIn(t, keys), statementIn(t, out, keys)
	s, err := bundle.VerifyProvenance(envelope, trust, of)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range m.Artifacts {
		if a.Name != provenanceFile && !slices.ContainsFunc(s.Subject, func(r bundle.Resource) bool { return r.Name == a.Name && r.Digest[bundle.DigestSHA256] == a.SHA256 }) {
			t.Errorf("%s is not a subject of the provenance", a.Name)
		}
	}
	if s.Source() != "" {
		t.Errorf("the provenance has the commit %s, although the sample has no commit", s.Source())
	}
	text, err := json.Marshal(s.Predicate.BuildDefinition.ResolvedDependencies)
	if err != nil {
		t.Fatal(err)
	}
	lock, err := debian.ReadLock(lockFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, in := range m.Inputs {
		if !bytes.Contains(text, []byte(in.SHA256)) {
			t.Errorf("the input %s is not a dependency in the provenance", in.Name)
		}
	}
	for _, want := range sysrootPackages {
		p, err := lock.Find(want)
		if err != nil || !bytes.Contains(text, []byte(p.SHA256)) {
			t.Errorf("the package %s, which the compiler reads, is not a dependency in the provenance (%v)", want, err)
		}
	}
	if strings.Count(string(text), `"program `) != len(programs) {
		t.Errorf("the provenance does not name each executable that replaces a build: %s", text)
	}
}

// checkSigned checks that the holder of another key can sign the bundle and its provenance later.
func checkSigned(t *testing.T, out string) {
	dir := t.TempDir()
	if err := makeKeys([]string{"-out", dir}); err != nil {
		t.Fatal(err)
	}
	copyFile(t, filepath.Join(out, outputBundle), filepath.Join(dir, outputBundle))
	copyFile(t, filepath.Join(out, provenanceFile), filepath.Join(dir, provenanceFile))
	key := filepath.Join(dir, "signing.key")
	for _, args := range [][]string{{"-bundle", filepath.Join(dir, outputBundle), "-key", key}, {"-provenance", filepath.Join(dir, provenanceFile), "-key", key}} {
		if err := signBundle(args); err != nil {
			t.Fatal(err)
		}
		if err := signBundle(args); err == nil || !strings.Contains(err.Error(), "it has a signature of this key already") {
			t.Errorf("%v twice: %v", args, err)
		}
	}
	keys := filepath.Join(dir, "keys.pem")
	envelope, err := os.ReadFile(filepath.Join(dir, provenanceFile))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bundle.VerifyProvenance(envelope, trustIn(t, keys), statementIn(t, dir, keys)); err != nil {
		t.Error(err)
	}
	for _, args := range [][]string{{"-key", key}, {"-bundle", "a", "-provenance", "b", "-key", key}, {"-provenance", "b", "-out", "c", "-key", key}} {
		if err := signBundle(args); err == nil || !strings.Contains(err.Error(), "-key is required") {
			t.Errorf("%v: %v", args, err)
		}
	}
}

// trustIn reads public keys.
func trustIn(t *testing.T, keys string) bundle.Trust {
	t.Helper()
	text, err := os.ReadFile(keys)
	if err != nil {
		t.Fatal(err)
	}
	trust, err := bundle.ParseTrust(text)
	if err != nil {
		t.Fatal(err)
	}
	return trust
}

// statementIn reads the statement of the bundle in a directory of artifacts.
func statementIn(t *testing.T, out, keys string) bundle.Statement {
	t.Helper()
	f, err := os.Open(filepath.Join(out, outputBundle))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := bundle.Open(f, trustIn(t, keys))
	if err != nil {
		t.Fatal(err)
	}
	return r.Statement
}

// TestModuleResources checks that the modules of a program have the digests of go.sum.
func TestModuleResources(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	all, err := moduleResources(map[string]string{"machined": self, "init": self})
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(all, func(r bundle.Resource) bool {
		return strings.HasPrefix(r.URI, "pkg:golang/github.com/klauspost/compress@v")
	})
	if at < 0 || len(all) < 10 || !slices.IsSortedFunc(all, func(a, b bundle.Resource) int { return strings.Compare(a.URI, b.URI) }) {
		t.Fatalf("%d modules: %v", len(all), all)
	}
	sums, err := os.ReadFile("../go.sum")
	if err != nil {
		t.Fatal(err)
	}
	version := strings.TrimPrefix(all[at].URI, "pkg:golang/github.com/klauspost/compress@")
	_, line, _ := strings.Cut(string(sums), "github.com/klauspost/compress "+version+" ")
	sum, _, _ := strings.Cut(line, "\n")
	if want, err := dirHash(sum); err != nil || all[at].Digest[bundle.DigestDirHash] != want {
		t.Errorf("the module is %v, %v; go.sum has the digest %s", all[at], err, sum)
	}
	for _, bad := range []string{"", "h1:", "h1:YQ==", "h2:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=", "h1:?"} {
		if got, err := dirHash(bad); err == nil {
			t.Errorf("dirHash(%q) returns %s, want an error", bad, got)
		}
	}
	// the example of the specification (in-toto attestation framework, digest_set.md)
	if got, err := dirHash("h1:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="); err != nil || got != "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" {
		t.Error(got, err)
	}
}

// TestSourceCommit checks that sourceCommit returns a commit only if the source has no changes.
func TestSourceCommit(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("GIT_CEILING_DIRECTORIES", filepath.Dir(dir))
	t.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
	t.Chdir(dir)
	git := func(args ...string) string {
		t.Helper()
		c := exec.Command("git", append([]string{"-c", "user.name=test", "-c", "user.email=test@example.com"}, args...)...)
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	refused := func(want string) {
		t.Helper()
		if commit, note := sourceCommit(); commit != "" || !strings.Contains(note, want) {
			t.Errorf("commit %q, %q; want %q", commit, note, want)
		}
	}
	refused("git does not know one")
	git("init", "-q")
	refused("git does not know one")
	if err := errors.Join(os.Mkdir("sub", 0o755), os.WriteFile("sub/a.go", []byte("package a\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	git("add", ".")
	git("commit", "-q", "-m", "first")
	head := git("rev-parse", "HEAD")
	if commit, note := sourceCommit(); commit != head || note != "" {
		t.Errorf("commit %q, %q; want %s", commit, note, head)
	}
	if err := os.WriteFile("b.go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refused("changes that are not committed, such as b.go")
	t.Chdir("sub")
	refused("not the top of a git repository")
}
