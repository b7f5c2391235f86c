package imagestore

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"

	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/opencontainers/go-digest"

	"github.com/orlop-os/orlop/pkg/imagestore/imagesignature"
)

// TestSubjects: a signature can name the index of an image or its manifest for this machine, but no
// part of another image.
func TestSubjects(t *testing.T) {
	l := library{}
	image, arm := l.image(isAMD64, layered), l.image(isARM64, layered)
	other := l.image(`"os":"linux","architecture":"amd64","author":"x"`, layered)
	index, wider := l.index([2]string{arm, "{" + isARM64 + "}"}, [2]string{image, "{" + isAMD64 + "}"}), l.index([2]string{image, "{" + isAMD64 + "}"})
	m, err := decoded(image, l[image])
	if err != nil {
		t.Fatal(err)
	}
	id, lost := m.Config.Digest.String(), "sha256:"+strings.Repeat("0", 64)
	record := func(name, target string) *imagesapi.Image {
		return &imagesapi.Image{Name: name, Target: &types.Descriptor{Digest: target}}
	}
	signatures := record("registry.example.com/app:sha256-x.sig", image)
	signatures.Labels = map[string]string{labelSignatureOf: image}
	for _, c := range []struct {
		name    string
		records []*imagesapi.Image
		want    []Subject
	}{
		{"a manifest", []*imagesapi.Image{record(id, image)}, []Subject{{image, image}}},
		{"an index", []*imagesapi.Image{record(id, index)}, []Subject{{index, index}, {image, index}}},
		{"a pulled image", []*imagesapi.Image{record(id, index), record("registry.example.com/app:1", index), record("registry.example.com/app@"+index, index)}, []Subject{{index, index}, {image, index}}},
		{"the image with the name of the pod comes first", []*imagesapi.Image{record(id, wider), record("registry.example.com/app:1", index)}, []Subject{{index, index}, {image, index}, {wider, wider}, {image, wider}}},
		{"another image of the repository", []*imagesapi.Image{record("registry.example.com/app:2", other), record(id, image)}, []Subject{{image, image}}},
		{"only another image", []*imagesapi.Image{record("registry.example.com/app:2", other), record("registry.example.com/other:1", image)}, nil},
		{"not in the store", []*imagesapi.Image{record(id, lost)}, nil},
		{"signatures", []*imagesapi.Image{signatures}, nil},
	} {
		got, err := subjects(l.read, c.records, id, "registry.example.com/app")
		if !slices.Equal(got, c.want) || errors.Is(err, fs.ErrNotExist) != (c.want == nil) {
			t.Errorf("%s: %v, %v; want %v", c.name, got, err, c.want)
		}
	}
}

// TestDocument: Document returns an error for content that is damaged, too large or missing.
func TestDocument(t *testing.T) {
	d, store := started(t)
	whole, damaged := d.put("whole"), d.put("as it was")
	d.blobs[damaged] = []byte("otherwise")
	if text, err := store.Document(t.Context(), false, whole, 5); string(text) != "whole" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	for name, want := range map[string]string{damaged: "is damaged", whole: "more than 4 bytes", digest.FromString("x").String(): "cannot read", "sha256:x": "is not a SHA-256"} {
		limit := int64(64)
		if name == whole {
			limit = 4
		}
		if text, err := store.Document(t.Context(), true, name, limit); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v; want %s", name, text, err, want)
		}
	}
}

// TestFetchSignatures: the kubelet does not see fetched signatures as images. Fetched signatures
// remain stored as long as their image has a name.
func TestFetchSignatures(t *testing.T) {
	d, store := started(t)
	image, signatures := d.put(anImage), d.put(`{"layers":[{"digest":"sha256:a","size":200}]}`)
	const name, old, large = "registry.example.com/app:sha256-a.sig", "registry.example.com/old:sha256-b.sig", "registry.example.com/app:sha256-d.sig"
	d.remote = map[string]string{name: signatures, old: signatures, large: d.put(fmt.Sprintf(`{"layers":[{"digest":"sha256:a","size":%d}]}`, maxSignatures+1))}
	d.record("registry.example.com/app:1", image, nil)
	d.record("registry.example.com/old:1", signatures, nil)
	d.record("registry.example.com/gone:sha256-c.sig", signatures, map[string]string{labelSignatureOf: "sha256:c", labelImported: "true"})
	if err := store.FetchSignatures(t.Context(), "registry.example.com/app:sha256-c.sig", image); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error for a name that the registry does not have: %v", err)
	}
	if err := store.FetchSignatures(t.Context(), large, image); err == nil || !strings.Contains(err.Error(), "is too large for signatures") || d.fetched[large] != nil {
		t.Errorf("error for signatures that are too large: %v", err)
	}
	for _, f := range [][2]string{{old, signatures}, {name, image}} {
		if err := store.FetchSignatures(t.Context(), f[0], f[1]); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := store.Signatures(t.Context(), true, name); got != signatures || err != nil {
		t.Errorf("%s, %v", got, err)
	}
	if got, err := store.Signatures(t.Context(), false, name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("fetched signatures are visible as an image: %s, %v", got, err)
	}
	if got := d.names(); !slices.Equal(got, []string{"registry.example.com/app:1", "registry.example.com/old:1"}) || d.fetched[old] == nil {
		t.Errorf("the store has %q and %v", got, d.fetched)
	}
	delete(d.images, "registry.example.com/old:1")
	if err := store.FetchSignatures(t.Context(), name, image); err != nil || d.fetched[old] != nil || d.fetched[name] == nil {
		t.Errorf("after the deletion of the image: %v, %v", err, d.fetched)
	}
}

// TestConcurrentPull: the deletion of signatures without an image does not delete the signatures of
// an image that is pulled at the same time.
func TestConcurrentPull(t *testing.T) {
	d, store := started(t)
	image, pulled, signatures := d.put(anImage), d.put("another image"), d.put("{}")
	const name, during = "registry.example.com/app:sha256-a.sig", "registry.example.com/other:sha256-b.sig"
	d.remote = map[string]string{name: signatures}
	d.record("registry.example.com/app:1", image, nil)
	d.listed = func() {
		d.images["registry.example.com/other:1"] = &imagesapi.Image{Name: "registry.example.com/other:1", Target: &types.Descriptor{Digest: pulled}}
		d.fetched[during] = &imagesapi.Image{Name: during, Labels: map[string]string{labelSignatureOf: pulled}, Target: &types.Descriptor{Digest: signatures}}
	}
	if err := store.FetchSignatures(t.Context(), name, image); err != nil || d.fetched[name] == nil || d.fetched[during] == nil {
		t.Errorf("%v, %v", err, d.fetched)
	}
}

// TestPinSignatures: imported signatures stay imported, and are pinned.
func TestPinSignatures(t *testing.T) {
	d, store := started(t)
	const name = "registry.example.com/app:sha256-a.sig"
	d.record(name, d.put("{}"), map[string]string{labelImported: "true"})
	for range 2 {
		if err := store.PinSignatures(t.Context(), name, "sha256:a"); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := d.images[name].Labels, (map[string]string{labelImported: "true", labelPinned: "pinned", labelSignatureOf: "sha256:a"}); !maps.Equal(got, want) {
		t.Errorf("labels %v, want %v", got, want)
	}
	if err := store.PinSignatures(t.Context(), "missing", "sha256:a"); err == nil {
		t.Error("PinSignatures returns no error for a missing name")
	}
}

// TestImportSignatures: an archive can contain the signatures of its image. Signatures are not
// unpacked.
func TestImportSignatures(t *testing.T) {
	d, store := started(t)
	signed := d.put(`{"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:c","size":1},"layers":[{"mediaType":"` + imagesignature.ClaimType + `","digest":"sha256:l","size":2}]}`)
	const name = "registry.example.com/app:sha256-a.sig"
	d.next = map[string]string{"registry.example.com/app:1": d.put(anImage), name: signed}
	if images, err := store.Import(t.Context(), anArchive()); err != nil || len(images) != 2 {
		t.Fatalf("%v, %v", images, err)
	}
	if got, err := store.Signatures(t.Context(), false, name); got != signed || err != nil {
		t.Errorf("%s, %v", got, err)
	}
}

// TestReserved: an archive cannot replace an image of the system.
func TestReserved(t *testing.T) {
	d, store := started(t)
	pause := d.put(anImage)
	d.record("orlop.dev/pause:1", pause, nil)
	d.next = map[string]string{"orlop.dev/pause:1": d.put(fromFlux), "docker.io/library/web:1": pause}
	if images, err := store.Import(t.Context(), anArchive(), "orlop.dev/pause:1"); err == nil || !strings.Contains(err.Error(), "orlop.dev/pause:1, which belongs to the system; save it under another name; nothing was imported") {
		t.Errorf("%v, %v", images, err)
	}
	if got := d.names(); !slices.Equal(got, []string{"orlop.dev/pause:1"}) || d.images["orlop.dev/pause:1"].Target.Digest != pause {
		t.Errorf("the store has %v", d.images)
	}
}
