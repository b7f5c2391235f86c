package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestParseReleases(t *testing.T) {
	commit := strings.Repeat("0a", 20)
	entry := func(version, commit string) string {
		return fmt.Sprintf("- {version: %s, commit: %q}\n", version, commit)
	}
	all, err := parseReleases([]byte(entry("0.9.0", commit) + entry("0.10.0", commit)))
	if err != nil || len(all) != 2 {
		t.Fatalf("parseReleases returns %v, %v", all, err)
	}
	for version, want := range map[string]string{"": "0.10.0", "0.9.0": "0.9.0"} {
		if r, err := choose(all, version); err != nil || r.Version != want {
			t.Errorf("choose(%q) is %v, %v", version, r, err)
		}
	}
	if _, err := choose(all, "1.0.0"); err == nil || err.Error() != `"1.0.0" is not a release; known are 0.9.0, 0.10.0` {
		t.Errorf("an unknown version: %v", err)
	}
	for text, want := range map[string]string{
		"":                       "no release",
		"- {version: 1.0.0}":     "40 hexadecimal digits",
		entry("v1.0.0", commit):  "three numbers",
		entry("1.0", commit):     `field "version": is of the type number, expected string`,
		entry("1.0.0", "4ba37a"): "40 hexadecimal digits",
		entry("1.0.0", commit) + entry("0.9.0", commit):           "ascending",
		"- {version: 1.0.0, signed: yes}":                         `unknown field "[0].signed"`,
		"- {version: 1.0.0, version: 2.0.0}":                      "line 1: a field occurs twice",
		entry("1.0.0", commit) + "---\n" + entry("2.0.0", commit): "a second document",
	} {
		if _, err := parseReleases([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
}

// TestReleasesFile checks that the releases.yaml of this repository is valid.
func TestReleasesFile(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", releasesFile))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parseReleases(text); err != nil {
		t.Error(err)
	}
}

// fakeMakefile is the Makefile of the release. It writes the inputs of the build into the outputs,
// so a test can check the inputs.
const fakeMakefile = `image:
	mkdir -p build/$(PROFILE) build/bin
	cat build/release/signing.key > build/$(PROFILE)/orlop.bundle
	git describe --tags > build/$(PROFILE)/manifest.json
	echo "disk of $$(cat profiles/VERSION), flags '$$MAKEFLAGS$$GOFLAGS'" > build/$(PROFILE)/disk.raw
	echo compressed > build/$(PROFILE)/disk.raw.zst
	echo tool > build/bin/orlopctl
	printf '#!/bin/sh\nmkdir -p build/next && echo "$$*" > build/next/orlop.bundle\n' > build/bin/imager
	chmod +x build/bin/imager
	echo package > build/cache/deb/aa.deb
	echo built >> $(COUNT)
`

// newProject makes a repository with release 0.1.0 as its first commit. It returns a builder for
// this release, and a function that returns the number of builds so far.
func newProject(t *testing.T) (b *builder, builds func() int) {
	t.Helper()
	dir := t.TempDir()
	repository, count := filepath.Join(dir, "repository"), filepath.Join(dir, "count")
	write := func(name, text string) {
		t.Helper()
		name = filepath.Join(repository, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("Makefile", strings.ReplaceAll(fakeMakefile, "$(COUNT)", count))
	write("profiles/VERSION", "0.1.0\n")
	write(".gitignore", "/build/\n")
	write("build/operator/ca.crt", "CA")
	write("build/release/keys.pem", "keys")
	write("build/release/signing.key", "private")
	git(t, repository, "init", "--quiet")
	git(t, repository, "add", ".")
	git(t, repository, "commit", "--quiet", "--message", "release")
	commit := git(t, repository, "rev-parse", "HEAD")
	write("profiles/VERSION", "0.2.0\n")
	git(t, repository, "commit", "--quiet", "--all", "--message", "later")
	b = &builder{Release: Release{Version: "0.1.0", Commit: commit}, profile: "qemu", repository: repository, cache: filepath.Join(dir, "cache"), log: &bytes.Buffer{}}
	return b, func() int {
		text, _ := os.ReadFile(count) // the file is missing before the first build
		return strings.Count(string(text), "built")
	}
}

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	command := exec.Command("git", append([]string{"-c", "user.name=test", "-c", "user.email=test@example.test", "-c", "protocol.file.allow=always"}, args...)...)
	command.Dir = dir
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// TestProvide checks that provide builds a release once, from its commit and with its tag, although
// the working tree is at a later commit and has changes. If the result is damaged, provide builds
// it again. With other keys, provide builds another result.
func TestProvide(t *testing.T) {
	t.Setenv("MAKEFLAGS", "--warn-undefined-variables")
	t.Setenv("GOFLAGS", "-mod=vendor")
	b, builds := newProject(t)
	if err := os.WriteFile(filepath.Join(b.repository, "Makefile"), []byte("image:\n\tfalse\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := git(t, b.repository, "status", "--short") + git(t, b.repository, "for-each-ref")
	dir, err := b.provide()
	if err != nil {
		t.Fatalf("%v\n%s", err, b.log)
	}
	for name, want := range map[string]string{
		"orlop.bundle": "private", "manifest.json": "0.1.0\n", "disk.raw": "disk of 0.1.0, flags ' -- PROFILE=qemu'\n", "bin/orlopctl": "tool\n",
		"next/orlop.bundle": "-profile profiles/qemu.yaml -outputs orlop.bundle -bin  -out build/next -version 99.0.0\n",
	} {
		if text, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(text) != want {
			t.Errorf("%s holds %q, %v; want %q", name, text, err, want)
		}
	}
	if after := git(t, b.repository, "status", "--short") + git(t, b.repository, "for-each-ref"); after != before {
		t.Errorf("the repository has changed: %s, before: %s", after, before)
	}
	if _, err := os.Stat(filepath.Join(b.repository, packageCache, "aa.deb")); err != nil {
		t.Errorf("the package is not in the shared cache: %v", err)
	}
	left, err := filepath.Glob(filepath.Join(b.cache, "*"))
	if want := []string{dir, dir + ".lock"}; err != nil || !slices.Equal(left, want) {
		t.Errorf("the cache has %q, %v; want %q", left, err, want)
	}

	if again, err := b.provide(); err != nil || again != dir || builds() != 1 {
		t.Errorf("a second call: %s, %v, %d builds", again, err, builds())
	}
	for name, damage := range map[string]func() error{
		"a changed file":   func() error { return os.WriteFile(filepath.Join(dir, "disk.raw"), []byte("else"), 0o600) },
		"a missing file":   func() error { return os.Remove(filepath.Join(dir, "orlop.bundle")) },
		"no list of files": func() error { return os.Remove(filepath.Join(dir, sumsFile)) },
		"a result of a former version of this program, without next/": func() error {
			return errors.Join(os.RemoveAll(filepath.Join(dir, "next")), writeSums(dir))
		},
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		was := builds()
		if _, err := b.provide(); err != nil || builds() != was+1 || verify(dir) != nil {
			t.Errorf("%s: error %v, %d builds, want 1; verify then returns %v", name, err, builds()-was, verify(dir))
		}
	}
	if err := os.WriteFile(filepath.Join(b.repository, publicKeys[1]), []byte("other keys"), 0o600); err != nil {
		t.Fatal(err)
	}
	if other, err := b.provide(); err != nil || other == dir {
		t.Errorf("with other keys: %s, %v", other, err)
	}
}

// TestProvideRefuses checks the errors of provide. After an error, the cache has no result.
func TestProvideRefuses(t *testing.T) {
	for want, change := range map[string]func(*builder){
		"fetch the branch that contains it": func(b *builder) { b.Commit = strings.Repeat("0", 40) },
		"git fetch --unshallow": func(b *builder) {
			shallow := filepath.Join(t.TempDir(), "shallow")
			git(t, ".", "clone", "--quiet", "--depth", "1", "file://"+b.repository, shallow)
			if err := os.CopyFS(filepath.Join(shallow, "build"), os.DirFS(filepath.Join(b.repository, "build"))); err != nil {
				t.Fatal(err)
			}
			b.repository = shallow
		},
		"tag 0.1.0 names commit":                   func(b *builder) { git(t, b.repository, "tag", "0.1.0", "HEAD") },
		`has version "0.2.0" in profiles/VERSION`:  func(b *builder) { b.Commit = git(t, b.repository, "rev-parse", "HEAD") },
		"make image: exit status 2":                func(b *builder) { b.profile = "qemu; false; true" },
		"cannot read the keys of the image, which": func(b *builder) { b.repository = t.TempDir() },
	} {
		b, _ := newProject(t)
		change(b)
		if dir, err := b.provide(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s, error %v, want %q", dir, err, want)
		}
		left, err := filepath.Glob(filepath.Join(b.cache, "*"))
		left = slices.DeleteFunc(left, func(file string) bool { return strings.HasSuffix(file, ".lock") })
		if err != nil || len(left) > 0 {
			t.Errorf("%s: the cache has results: %q, %v", want, left, err)
		}
	}
}

// TestLock checks that lock waits while another holder has the lock, and that it logs the reason.
func TestLock(t *testing.T) {
	name := filepath.Join(t.TempDir(), "release.lock")
	unlock, err := lock(name, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	log, write := io.Pipe()
	done := make(chan error, 1)
	go func() {
		second, err := lock(name, write)
		if err == nil {
			second()
		}
		write.Close()
		done <- err
	}()
	line, err := bufio.NewReader(log).ReadString('\n')
	if want := name + ": waiting for another process, which builds this release\n"; err != nil || line != want {
		t.Fatalf("the log has %q, %v; want %q", line, err, want)
	}
	unlock()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestReplaceLink(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "build", "previous")
	for _, to := range []string{"/one", "/two"} {
		if err := replaceLink(to, link); err != nil {
			t.Fatal(err)
		}
		if got, err := os.Readlink(link); err != nil || got != to {
			t.Errorf("link to %s, %v; want %s", got, err, to)
		}
	}
	if err := replaceLink("/three", filepath.Dir(link)); err == nil || !strings.Contains(err.Error(), "is not a symbolic link") {
		t.Errorf("a directory has the name of the link: %v", err)
	}
}
