package imagestore

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/types"

	imagesapi "github.com/containerd/containerd/api/services/images/v1"
)

// TestFullName: fullName returns the name by which containerd finds the image of a pod
// (core/images/archive, normalizeReference).
func TestFullName(t *testing.T) {
	const sum = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for name, want := range map[string]string{
		"app":                               "docker.io/library/app:latest",
		"app:1":                             "docker.io/library/app:1",
		"team/app:1":                        "docker.io/team/app:1",
		"team/app":                          "docker.io/team/app:latest",
		"docker.io/app:1":                   "docker.io/library/app:1",
		"index.docker.io/team/app:1":        "docker.io/team/app:1",
		"localhost/app:1":                   "localhost/app:1",
		"localhost:5000/app":                "localhost:5000/app:latest",
		"registry.example.com/a/b/c":        "registry.example.com/a/b/c:latest",
		"registry.example.com:5000/app:1":   "registry.example.com:5000/app:1",
		"[fd00::1]:5000/app:1":              "[fd00::1]:5000/app:1",
		"app@" + sum:                        "docker.io/library/app@" + sum,
		"app:1@" + sum:                      "docker.io/library/app@" + sum,
		"registry.example.com/app:1@" + sum: "registry.example.com/app@" + sum,
	} {
		if got, err := fullName(name, sum); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", name, got, err, want)
		}
	}
	other := "sha256:" + strings.Repeat("f", 64)
	for _, name := range []string{
		"", "App:1", "team/App:1", "app:", "app::1", "app 1", ":1", "/app:1", "app@sha256:12", "https://registry.example.com/app:1",
		"app:" + strings.Repeat("1", 129), "app@" + other, strings.Repeat("a/", 200) + "app:1", "app:ü",
	} {
		if got, err := fullName(name, sum); err == nil {
			t.Errorf("the invalid name %q is converted to %s", name, got)
		}
	}
}

// TestImportNames: after an import, the images have only their full names.
func TestImportNames(t *testing.T) {
	d, store := started(t)
	small := d.put(anImage)
	d.next = map[string]string{"app:1": small, "docker.io/library/app:1": small, "team/app:1": small, "registry.example.com/app:1": small, "app@" + small: small}
	images, err := store.Import(t.Context(), anArchive())
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"docker.io/library/app:1", "docker.io/library/app@" + small, "docker.io/team/app:1", "registry.example.com/app:1"}
	var got []string
	for _, i := range images {
		got = append(got, i.Name)
	}
	if slices.Sort(got); !slices.Equal(got, want) || !slices.Equal(d.names(), want) {
		t.Errorf("Import returned %q, and the store has %q; want %q", got, d.names(), want)
	}
	for _, name := range want {
		if d.images[name].Labels[labelImported] == "" || d.labels[small][contentLabel(name)] == "" {
			t.Errorf("%s lacks a label for imported images", name)
		}
	}
}

// TestImportRefused: the import of an archive with an unusable image fails, and changes nothing in
// the store.
func TestImportRefused(t *testing.T) {
	d, store := started(t)
	small := d.put(anImage)
	config := d.put(`{"os":"linux","architecture":"arm64"}`)
	foreign := d.put(fmt.Sprintf(`{"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q}}`, config))
	index := d.put(fmt.Sprintf(`{"manifests":[{"digest":%q}]}`, foreign))
	lost := d.put(`{"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:lost"}}`)
	within := small
	for range maxDepth + 1 {
		within = d.put(fmt.Sprintf(`{"manifests":[{"digest":%q}]}`, within))
	}
	d.images["registry.example.com/app:1"] = &imagesapi.Image{Name: "registry.example.com/app:1", Target: &types.Descriptor{Digest: "sha256:before"}, Labels: map[string]string{"mine": "true"}}
	for name, c := range map[string]struct {
		brings map[string]string
		want   string
	}{
		"another platform":                       {map[string]string{"app:1": index}, "docker.io/library/app:1: is for linux/arm64, and this machine is linux/amd64"},
		"another platform beside a usable image": {map[string]string{"app:1": foreign, "registry.example.com/app:1": small}, "is for linux/arm64"},
		"an invalid name":                        {map[string]string{"App:1": small}, "has an image with the name App:1, which is invalid in a pod: invalid reference format: repository name (library/App) must be lowercase"},
		"the digest of another image":            {map[string]string{"app@sha256:" + strings.Repeat("f", 64): small}, "it is " + small},
		"one name, two images":                   {map[string]string{"app:1": small, "docker.io/library/app:1": d.put(fromFlux)}, "two images with the same full name docker.io/library/app:1"},
		"no configuration":                       {map[string]string{"app:1": lost}, "a part of it is not in the archive"},
		"indexes that are nested too deep":       {map[string]string{"app:1": within}, errBounds.Error()},
		"neither an image nor an artifact":       {map[string]string{"app:1": d.put(`{"schemaVersion":2}`)}, "neither an image nor an artifact"},
	} {
		d.next = c.brings
		images, err := store.Import(t.Context(), anArchive())
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "nothing was imported") {
			t.Errorf("%s: %v, %v; want %q", name, images, err, c.want)
		}
		if old := d.images["registry.example.com/app:1"]; len(d.images) != 1 || old.GetTarget().GetDigest() != "sha256:before" || old.Labels["mine"] == "" || len(old.Labels) != 1 {
			t.Errorf("%s: afterwards, the store has %v", name, d.images)
		}
	}
}
