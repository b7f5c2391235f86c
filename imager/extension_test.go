package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/pkg/extension"
	"github.com/orlop-os/orlop/pkg/kernel/kmod"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/verity"
)

// sampleExtension is a definition with most of the possible fields.
const sampleExtension = `name: sample
version: "1"
programs: [{path: /usr/bin/containerd-shim-sample-v1, module: ., package: ./none}]
modules: [nfsv4, overlay]
load: [nfsv4]
` + packagesLine + `files: [{from: blob.fw, to: /usr/lib/firmware/sample/blob.fw}]
runtimes: [{handler: sample, type: io.containerd.sample.v1}]
services: [{name: agent, args: [/usr/bin/containerd-shim-sample-v1, wait], user: 200, capabilities: [NET_ADMIN], memory: 32MiB, processes: 8, state: true}]
`

const packagesLine = "packages: [{package: e2fsprogs, from: /usr/sbin/resize2fs, to: /usr/sbin/resize-sample, executable: true}]\n"

// buildExtensionIn builds the extension of a definition in the directory dir and signs it with key.
// The executable fake replaces its program. The returned text is the digest of the OCI manifest.
func buildExtensionIn(t *testing.T, dir, definition string, key bundle.Key, fake string) (*ExtensionBuild, string, error) {
	t.Helper()
	file := filepath.Join(dir, "extension.yaml")
	for name, text := range map[string]string{file: definition, filepath.Join(dir, "blob.fw"): "firmware"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	e, err := ReadExtension(file)
	if err != nil {
		return nil, "", err
	}
	profile, err := ReadProfile(sampleProfile)
	if err != nil {
		t.Fatal(err)
	}
	b := &ExtensionBuild{
		Definition: e, Dir: dir, Profile: profile, Release: buildinfo.Release{Version: "9.9.9", BuildTime: 1_700_000_000}, Keys: []bundle.Key{key},
		Out: filepath.Join(dir, "out"), Cache: "build/cache", Programs: map[string]string{"/usr/bin/containerd-shim-sample-v1": fake}, Log: new(bytes.Buffer),
	}
	digest, err := b.Run()
	return b, digest, err
}

// TestExtension builds the sample in two directories. It checks that both builds have the same
// bytes, and that the statement describes the image.
func TestExtension(t *testing.T) {
	dir := t.TempDir()
	fake := filepath.Join(dir, "fake")
	compile := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", fake, "./testdata/fake")
	compile.Env = append(os.Environ(), "CGO_ENABLED=0")
	if msg, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, msg)
	}
	t.Chdir("..")
	fillCache(t, "build/cache")
	key, err := bundle.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	one, digest, err := buildExtensionIn(t, t.TempDir(), sampleExtension, key, fake)
	if err != nil {
		t.Fatal(err)
	}
	two, other, err := buildExtensionIn(t, t.TempDir(), sampleExtension, key, fake)
	if err != nil {
		t.Fatal(err)
	}
	if digest != other {
		t.Errorf("two builds have the digests %s and %s", digest, other)
	}
	for _, suffix := range []string{".img", ".json", ".dsse.json", ".oci.tar", ".digest"} {
		a, err := hashFile(suffix, one.out(suffix))
		if err != nil {
			t.Fatal(err)
		}
		if b, err := hashFile(suffix, two.out(suffix)); err != nil || a != b {
			t.Errorf("two builds differ: %v %v %v", a, b, err)
		}
	}
	checkSampleExtension(t, one, key)
}

// checkSampleExtension checks the statement, its signature and the index of the modules.
func checkSampleExtension(t *testing.T, b *ExtensionBuild, key bundle.Key) {
	t.Helper()
	envelope, err := os.ReadFile(b.out(".dsse.json"))
	if err != nil {
		t.Fatal(err)
	}
	public, err := key.PublicPEM()
	if err != nil {
		t.Fatal(err)
	}
	trust, err := bundle.ParseTrust(public)
	if err != nil {
		t.Fatal(err)
	}
	s, err := extension.Verify(envelope, extension.Trust{Keys: trust})
	if err != nil {
		t.Fatal(err)
	}
	plain, err := os.ReadFile(b.out(".json"))
	if own, _ := json.MarshalIndent(s, "", "  "); err != nil || string(plain) != string(own)+"\n" {
		t.Errorf("%v\n%s", err, plain)
	}
	params, err := verity.Parse(s.Root)
	if err == nil {
		err = verity.Verify(b.out(".img"), params)
	}
	if err != nil {
		t.Error(err)
	}
	if s.String() != "sample 1 for 9.9.9" || s.Profile != "qemu" || !strings.Contains(s.Kernel, "cloud") || !s.HasModules() || s.Runtimes[0].Shim() != s.Services[0].Args[0] || s.Services[0].Memory != 32<<20 {
		t.Errorf("the statement is %+v", s)
	}
	has := func(part string) bool {
		return slices.ContainsFunc(s.Files, func(f extension.File) bool { return strings.Contains(f.Path, part) })
	}
	// The extension has nfs and sunrpc, because nfsv4 needs them. It omits overlay and the
	// libraries of resize2fs, because the image has them.
	for part, want := range map[string]bool{
		"/nfsv4.ko": true, "/nfs.ko": true, "/sunrpc.ko": true, "/overlay.ko": false, "/libext2fs": false, "/usr/sbin/resize-sample": true,
		"/usr/lib/firmware/sample/blob.fw": true, "/modules.builtin": false,
	} {
		if has(part) != want {
			t.Errorf("the extension contains %s: %t, expected %t", part, !want, want)
		}
	}
	index, err := kmod.Read(filepath.Join(b.work("root"), extension.ModulesDir(s.Name, s.Kernel)))
	if err != nil {
		t.Fatal(err)
	}
	steps, err := index.Plan("nfsv4")
	if err != nil || len(steps) < 3 || slices.Contains(index.Names(), "overlay") {
		t.Errorf("the steps to load nfsv4 are %v, %v", steps, err)
	}
}

// TestExtensionRefused checks that a definition with a fault makes no extension.
func TestExtensionRefused(t *testing.T) {
	t.Chdir("..")
	fillCache(t, "build/cache")
	key, err := bundle.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ change, to, want string }{
		{"name: sample", "name: ../x", `"../x" is not a name`},
		{`version: "1"`, `version: ""`, "name and version are needed"},
		{"load: [nfsv4]", "loads: [nfsv4]", "loads"},
		{"modules: [nfsv4, overlay]", "modules: [overlay]", "the image of profile qemu has all its modules"},
		{"modules: [nfsv4, overlay]", "modules: [unheard-of]", `has no module "unheard-of"`},
		{"/usr/lib/firmware/sample/blob.fw", "/etc/passwd", "/etc/passwd: is outside of the permitted directories"},
		{"/usr/lib/firmware/sample/blob.fw", "/usr/bin/bash", "is named like an interpreter"},
		{"from: blob.fw", "from: missing.fw", "missing.fw"},
		{"memory: 32MiB", "memory: 1KiB", "of memory"},
		{"type: io.containerd.sample.v1", "type: io.containerd.other.v1", "containerd-shim-other-v1 is not in the extension"},
		{"package: e2fsprogs", "package: unheard-of", "unheard-of"},
	} {
		if !strings.Contains(sampleExtension, c.change) {
			t.Fatalf("%s: is not in the sample", c.change)
		}
		definition := strings.Replace(sampleExtension, c.change, c.to, 1)
		if c.change != "package: e2fsprogs" { // saves seconds: no packages of the image are read
			definition = strings.Replace(definition, packagesLine, "", 1)
		}
		_, _, err := buildExtensionIn(t, t.TempDir(), definition, key, "/proc/self/exe")
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.to, err)
		}
	}
}

// TestExtensionDefinitions checks the definitions of the source.
func TestExtensionDefinitions(t *testing.T) {
	all, err := filepath.Glob("../extensions/*/extension.yaml")
	if err != nil || len(all) == 0 {
		t.Fatal(all, err)
	}
	used := map[string]bool{}
	for _, file := range all {
		e, err := ReadExtension(file)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, f := range e.Packages {
			used[f.Package] = true
		}
		for _, p := range e.Libraries {
			used[p] = true
		}
		if want := filepath.Base(filepath.Dir(file)); e.Name != want {
			t.Errorf("%s: name is %q, expected %q, like its directory", file, e.Name, want)
		}
	}
	wanted := wantedPackages()
	for p := range used {
		if !slices.Contains(wanted, p) {
			t.Errorf("package %s is not in the lock file: add it to extensionPackages (imager/packages.go)", p)
		}
	}
	for _, p := range extensionPackages {
		if !used[p] {
			t.Errorf("no extension uses package %s", p)
		}
	}
}

// TestExtensionKeys checks that the image gets the keys of its profile, and that a file without a
// key is rejected.
func TestExtensionKeys(t *testing.T) {
	key, err := bundle.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	public, err := key.PublicPEM()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "keys.pem")
	for text, want := range map[string]string{string(public): "", "none": "no public key"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		b := &Build{Options: Options{Profile: &Profile{ExtensionKeys: file}}, tree: Tree{}}
		err := b.addExtensionKeys()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
		if err == nil && string(b.tree[paths.ExtensionKeys].Data) != text {
			t.Errorf("the tree is %+v", b.tree)
		}
	}
	if err := (&Build{Options: Options{Profile: &Profile{}}}).addExtensionKeys(); err != nil {
		t.Error("without keys:", err)
	}
}
