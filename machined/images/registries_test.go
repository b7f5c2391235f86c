package images

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/egress"
	"github.com/orlop-os/orlop/pkg/pki"
)

// TestRegistryFiles checks the files that configure registries in containerd: mirrors of all
// registries and of a single one, registries with a CA and a user, the CAs of the site, and other
// machines as a source of images.
func TestRegistryFiles(t *testing.T) {
	made, err := pki.NewCA("registries", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := config.ParseCertificate(string(made.CertPEM()))
	if err != nil {
		t.Fatal(err)
	}
	proxy := localMirror{url: "http://127.0.0.1:4444", token: "through"}
	files := registryFiles([]config.ImageRegistry{
		{Address: "mirror.example.com/outside", Mirrors: []config.RegistryName{"docker.io"}, CA: config.NewBundle(ca), Username: "machines", Password: config.NewSecret("pass")},
		{Address: "10.0.0.9:5000", Mirrors: []config.RegistryName{config.AnyRegistry}, PlainHTTP: true},
		{Address: "own.example.com", CA: config.NewBundle(ca), Username: "me", Password: config.NewSecret("word")},
	}, "", localMirror{}, proxy)
	want := map[string]string{
		"_default/hosts.toml": `
[host."http://127.0.0.1:4444/through/10.0.0.9:5000/v2"]
capabilities = ["pull", "resolve"]
override_path = true
[host."http://127.0.0.1:4444/through/10.0.0.9:5000/v2".header]
Orlop-Mirror = "through"
`,
		"docker.io/hosts.toml": `
[host."http://127.0.0.1:4444/through/mirror.example.com/v2/outside"]
capabilities = ["pull", "resolve"]
override_path = true
ca = "../authorities/0.crt"
[host."http://127.0.0.1:4444/through/mirror.example.com/v2/outside".header]
Orlop-Mirror = "through"
Authorization = "Basic bWFjaGluZXM6cGFzcw=="

[host."http://127.0.0.1:4444/through/10.0.0.9:5000/v2"]
capabilities = ["pull", "resolve"]
override_path = true
[host."http://127.0.0.1:4444/through/10.0.0.9:5000/v2".header]
Orlop-Mirror = "through"
`,
		"10.0.0.9:5000/hosts.toml": `server = "http://10.0.0.9:5000"
`,
		"own.example.com/hosts.toml": `server = "https://own.example.com"
ca = "../authorities/2.crt"
[header]
Authorization = "Basic bWU6d29yZA=="

[host."http://127.0.0.1:4444/through/10.0.0.9:5000/v2"]
capabilities = ["pull", "resolve"]
override_path = true
[host."http://127.0.0.1:4444/through/10.0.0.9:5000/v2".header]
Orlop-Mirror = "through"
`,
	}
	for name, text := range want {
		if got := string(files[name]); got != text {
			t.Errorf("%s:\n%s\nwant:\n%s", name, got, text)
		}
	}
	got := slices.Sorted(maps.Keys(files))
	if all := slices.Sorted(slices.Values(append(slices.Collect(maps.Keys(want)), "authorities/0.crt", "authorities/2.crt"))); !slices.Equal(got, all) {
		t.Errorf("files %v, want %v", got, all)
	}
	if none := registryFiles(nil, "", localMirror{}, proxy); len(none) != 0 {
		t.Errorf("without configured registries, there are the files %v", none)
	}

	// The CAs of the site are trusted for every registry with TLS.
	site := registryFiles([]config.ImageRegistry{
		{Address: "mirror.example.com", Mirrors: []config.RegistryName{"docker.io"}, CA: config.NewBundle(ca)},
		{Address: "10.0.0.9:5000", PlainHTTP: true},
	}, "the CA of the site", localMirror{}, proxy)
	for name, text := range map[string]string{
		"authorities/site.crt": "the CA of the site",
		"_default/hosts.toml":  "ca = \"../authorities/site.crt\"\n",
		"docker.io/hosts.toml": `ca = "../authorities/site.crt"

[host."http://127.0.0.1:4444/through/mirror.example.com/v2"]
capabilities = ["pull", "resolve"]
override_path = true
ca = ["../authorities/0.crt", "../authorities/site.crt"]
[host."http://127.0.0.1:4444/through/mirror.example.com/v2".header]
Orlop-Mirror = "through"
`,
		"mirror.example.com/hosts.toml": "server = \"https://mirror.example.com\"\nca = [\"../authorities/0.crt\", \"../authorities/site.crt\"]\n",
		"10.0.0.9:5000/hosts.toml":      "server = \"http://10.0.0.9:5000\"\n",
	} {
		if got := string(site[name]); got != text {
			t.Errorf("with a CA of the site, %s:\n%s\nwant:\n%s", name, got, text)
		}
	}

	// containerd asks the other machines before all registries.
	images := localMirror{url: "http://127.0.0.1:4444", token: "word"}
	asked := `
[host."http://127.0.0.1:4444"]
capabilities = ["pull", "resolve"]
[host."http://127.0.0.1:4444".header]
Authorization = "Bearer word"
`
	if all := registryFiles(nil, "", images, proxy); len(all) != 1 || string(all["_default/hosts.toml"]) != asked {
		t.Errorf("with other machines there are %q", all)
	}
	outside := `
[host."http://127.0.0.1:4444/through/10.0.0.9:5000/v2"]
capabilities = ["pull", "resolve"]
override_path = true
[host."http://127.0.0.1:4444/through/10.0.0.9:5000/v2".header]
Orlop-Mirror = "through"
`
	all := registryFiles([]config.ImageRegistry{{Address: "10.0.0.9:5000", Mirrors: []config.RegistryName{"docker.io"}, PlainHTTP: true}}, "", images, proxy)
	for name, text := range map[string]string{"_default/hosts.toml": asked, "docker.io/hosts.toml": asked + outside, "10.0.0.9:5000/hosts.toml": "server = \"http://10.0.0.9:5000\"\n" + asked} {
		if got := string(all[name]); got != text {
			t.Errorf("with other machines, %s:\n%s\nwant:\n%s", name, got, text)
		}
	}
}

// TestWriteRegistries checks that writeRegistries removes the files that are not wanted any more,
// because they may contain passwords, and that only root can read the other files.
func TestWriteRegistries(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "hosts")
	for _, files := range []map[string][]byte{
		nil,
		{"a.example/hosts.toml": []byte("a"), "_default/hosts.toml": []byte("d")},
		{"_default/hosts.toml": []byte("d"), "authorities/0.crt": []byte("c")},
		{"a.example/hosts.toml": []byte("b")},
		{},
	} {
		if err := writeRegistries(dir, files); err != nil {
			t.Fatal(err)
		}
		found := map[string][]byte{}
		err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if os.IsNotExist(err) && len(files) == 0 {
				return nil
			}
			if err != nil {
				return err
			}
			if entry.IsDir() {
				// An empty directory of a registry hides "_default".
				if inside, err := os.ReadDir(path); path != dir && (err != nil || len(inside) == 0) {
					t.Errorf("the directory %s is empty, and the wanted files are %q; %v", path, slices.Sorted(maps.Keys(files)), err)
				}
				return nil
			}
			name, err := filepath.Rel(dir, path)
			if err != nil {
				return err
			}
			if info, err := entry.Info(); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: %v, %v", name, info.Mode(), err)
			}
			found[name], err = os.ReadFile(path)
			return err
		})
		if err != nil || !maps.EqualFunc(found, files, slices.Equal) {
			t.Errorf("found %q, want %q; %v", found, files, err)
		}
	}
}

// TestUpstreams checks that a request goes to the mirror with the longest prefix of its path.
func TestUpstreams(t *testing.T) {
	var u upstreams
	set := func(all ...config.ImageRegistry) {
		if err := u.set(all, egress.Config{}); err != nil {
			t.Fatal(err)
		}
	}
	set([]config.ImageRegistry{
		{Address: "mirror.example.com", Mirrors: []config.RegistryName{"quay.io"}},
		{Address: "mirror.example.com/outside", Mirrors: []config.RegistryName{"docker.io"}, PlainHTTP: true},
		{Address: "[fd00::9]:5000", Mirrors: []config.RegistryName{config.AnyRegistry}, PlainHTTP: true},
		{Address: "own.example.com"},
	}...)
	for path, want := range map[string]string{
		"mirror.example.com/v2/library/web/manifests/1":         "mirror.example.com https://mirror.example.com",
		"mirror.example.com/v2/outside/library/web/manifests/1": "mirror.example.com/outside http://mirror.example.com",
		"mirror.example.com/v2/outsider/web/manifests/1":        "mirror.example.com https://mirror.example.com",
		"[fd00::9]:5000/v2/web/manifests/1":                     "[fd00::9]:5000 http://[fd00::9]:5000",
		"mirror.example.com/v3/web":                             "",
		"mirror.example.com.evil.example.com/v2/web":            "",
		"own.example.com/v2/web/manifests/1":                    "",
		"":                                                      "",
	} {
		got := ""
		if up, ok := u.Upstream(path); ok {
			got = up.Name + " " + up.URL.String()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if set(); len(u.all) != 0 {
		t.Error("mirrors that are not configured any more are still upstreams")
	}
}
