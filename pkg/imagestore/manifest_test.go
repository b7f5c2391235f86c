package imagestore

import (
	"fmt"
	"slices"
	"testing"

	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// store is a content store: an image of two layers, and indexes that hold it.
func store(name string) (manifest, error) {
	entry := func(d digest.Digest, size int64, p *ocispec.Platform) ocispec.Descriptor {
		return ocispec.Descriptor{Digest: d, Size: size, Platform: p}
	}
	ours, theirs := &ocispec.Platform{OS: "linux", Architecture: "amd64"}, &ocispec.Platform{OS: "linux", Architecture: "arm64"}
	switch name {
	case "sha256:image":
		return manifest{Config: entry("sha256:c", 300, nil), Layers: []ocispec.Descriptor{entry("sha256:l1", 1000, nil), entry("sha256:l2", 2000, nil)}}, nil
	case "sha256:both":
		return manifest{Manifests: []ocispec.Descriptor{entry("sha256:other", 7, theirs), entry("sha256:image", 50, ours)}}, nil
	case "sha256:archive":
		return manifest{Manifests: []ocispec.Descriptor{entry("sha256:image", 50, nil)}}, nil
	}
	return manifest{}, fmt.Errorf("no %s", name)
}

func TestSizeOf(t *testing.T) {
	for digest, want := range map[string]int64{"sha256:image": 3350, "sha256:both": 3400, "sha256:archive": 3400} {
		if got, err := sizeOf(store, digest, 50); err != nil || got != want {
			t.Errorf("%s: %d bytes, %v; want %d", digest, got, err, want)
		}
	}
	if _, err := sizeOf(store, "sha256:none", 0); err == nil {
		t.Error("an image that is not there has a size")
	}
}

func TestRedundant(t *testing.T) {
	record := func(name, digest string) *imagesapi.Image {
		return &imagesapi.Image{Name: name, Target: &types.Descriptor{Digest: digest}}
	}
	for _, c := range []struct {
		what string
		all  []*imagesapi.Image
		want []string
	}{
		{"the archive's own index beside its image", []*imagesapi.Image{record("web:1", "sha256:image"), record("imported@sha256:archive", "sha256:archive")}, []string{"imported@sha256:archive"}},
		{"an index for two machines, of which ours has a name", []*imagesapi.Image{record("web:1", "sha256:image"), record("imported@sha256:both", "sha256:both")}, []string{"imported@sha256:both"}},
		{"an index that is the only way to its image", []*imagesapi.Image{record("imported@sha256:both", "sha256:both")}, nil},
		{"an image without a name", []*imagesapi.Image{record("imported@sha256:image", "sha256:image")}, nil},
		{"an index with a name", []*imagesapi.Image{record("web:1", "sha256:both"), record("web:2", "sha256:image")}, nil},
	} {
		got, err := redundant(store, c.all)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, %v; want %q", c.what, got, err, c.want)
		}
	}
}
