package imagestore

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"

	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/opencontainers/go-digest"
)

// TestPartsOfImported: Find returns every part of an imported image, and no part of an image that
// was pulled or is for another platform.
func TestPartsOfImported(t *testing.T) {
	d, store := started(t)
	layer, config, foreign, secret := d.put("a layer"), d.put(configOf("a layer")), d.put(`{"config":{}}`), d.put("pulled with a password")
	manifest := d.put(fmt.Sprintf(`{"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q,"size":2},"layers":[{"mediaType":"layer","digest":%q,"size":7}]}`, config, layer))
	index := d.put(fmt.Sprintf(`{"manifests":[{"mediaType":"m","digest":%q,"size":3,"platform":{"os":"linux","architecture":"amd64"}},{"digest":%q,"platform":{"os":"linux","architecture":"arm64"}}]}`, manifest, foreign))
	private := d.put(fmt.Sprintf(`{"config":{"digest":%q},"layers":[{"digest":%q}]}`, config, secret))
	d.images["example.com/private:1"] = &imagesapi.Image{Name: "example.com/private:1", Target: &types.Descriptor{Digest: private}}
	d.next = map[string]string{"example.com/web:1": index}
	if _, err := store.Import(t.Context(), anArchive()); err != nil {
		t.Fatal(err)
	}
	all := NewImported(store)
	found := func(name string) string {
		t.Helper()
		got, err := all.Find(t.Context(), name)
		if errors.Is(err, fs.ErrNotExist) {
			return "none"
		} else if err != nil {
			t.Fatal(err)
		}
		return got.Digest.String()
	}
	for name, want := range map[string]string{
		"example.com/web:1": index, index: index, manifest: manifest, config: config, layer: layer,
		"example.com/web:2": "none", "example.com/private:1": "none", private: "none", secret: "none", foreign: "none", "": "none",
	} {
		if got := found(name); got != want {
			t.Errorf("Find of %q returns %s, want %s", name, got, want)
		}
	}
	if part, err := all.Find(t.Context(), layer); err != nil || part.MediaType != "layer" || part.Size != 7 {
		t.Errorf("the layer is %+v, %v", part, err)
	}
	r, err := all.Open(t.Context(), layer)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if text, err := io.ReadAll(r); string(text) != "a layer" || err != nil {
		t.Errorf("the layer holds %q, %v", text, err)
	}

	// The same content is pulled, under its name or another name: the imported name stays imported,
	// and no other name becomes imported.
	d.record("example.com/web:1", index, nil)
	d.record("example.com/web:latest", index, nil)
	for name, want := range map[string]string{"example.com/web:1": index, layer: layer, "example.com/web:latest": "none"} {
		if got := found(name); got != want {
			t.Errorf("after a pull of the same content, Find of %q returns %s, want %s", name, got, want)
		}
	}

	// The name now has another target, which was pulled from a registry. Find returns neither the
	// new target nor the former one.
	d.record("example.com/web:1", private, nil)
	for _, name := range []string{"example.com/web:1", layer, secret} {
		if got := found(name); got != "none" {
			t.Errorf("after a pull of another target, Find of %q returns %s", name, got)
		}
	}
	if len(all.trees) != 0 {
		t.Errorf("the trees %v are still stored", all.trees)
	}
}

// TestImportedAgain: after a second archive with one changed image, all images of the archive are
// imported. An image that pods pull during the import is not imported.
func TestImportedAgain(t *testing.T) {
	d, store := started(t)
	web, mail, newer, secret := d.put(anImage), d.put(fromFlux), d.put(typedOnly), d.put(fromOras)
	names := func(images []Image) string {
		var out []string
		for _, i := range images {
			out = append(out, i.Name)
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	d.next = map[string]string{"docker.io/library/web:1": web, "docker.io/library/mail:1": mail}
	if _, err := store.Import(t.Context(), anArchive()); err != nil {
		t.Fatal(err)
	}
	d.next, d.pulled = map[string]string{"docker.io/library/web:1": web, "docker.io/library/mail:1": newer}, map[string]string{"docker.io/library/secret:1": secret}
	again, err := store.Import(t.Context(), anArchive())
	if got := names(again); err != nil || got != "docker.io/library/mail:1 docker.io/library/web:1" {
		t.Errorf("Import returned %q, %v", got, err)
	}
	for name, marked := range map[string]bool{"docker.io/library/web:1": true, "docker.io/library/mail:1": true, "docker.io/library/secret:1": false} {
		if got := d.images[name].Labels[labelImported] != ""; got != marked {
			t.Errorf("%s has the label for imported images: %t", name, got)
		}
		if _, err := NewImported(store).Find(t.Context(), name); (err == nil) != marked {
			t.Errorf("Find of %s: %v", name, err)
		}
	}
}

// TestImportedAfterDamage: Find reads an image again if a part of it was unreadable before.
func TestImportedAfterDamage(t *testing.T) {
	d, store := started(t)
	manifest := d.put(anImage)
	text := d.blobs[manifest]
	d.next = map[string]string{"docker.io/library/web:1": manifest}
	if _, err := store.Import(t.Context(), anArchive()); err != nil {
		t.Fatal(err)
	}
	all := NewImported(store)
	delete(d.blobs, manifest)
	config := digest.FromString(smallConfig).String()
	if _, err := all.Find(t.Context(), config); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	d.blobs[manifest] = text
	if got, err := all.Find(t.Context(), config); err != nil || got.Size != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}
