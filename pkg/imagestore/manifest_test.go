package imagestore

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// store is a content store with an image of two layers, and indexes that contain this image.
func store(name string) ([]byte, error) {
	m, err := stored(name)
	if err != nil {
		return nil, err
	}
	return json.Marshal(m)
}

func stored(name string) (manifest, error) {
	entry := func(d digest.Digest, size int64, p *ocispec.Platform) ocispec.Descriptor {
		return ocispec.Descriptor{Digest: d, Size: size, Platform: p}
	}
	mine, theirs := &ocispec.Platform{OS: "linux", Architecture: "amd64"}, &ocispec.Platform{OS: "linux", Architecture: "arm64"}
	switch name {
	case "sha256:image":
		return manifest{Config: entry("sha256:c", 300, nil), Layers: []ocispec.Descriptor{entry("sha256:l1", 1000, nil), entry("sha256:l2", 2000, nil)}}, nil
	case "sha256:both":
		return manifest{Manifests: []ocispec.Descriptor{entry("sha256:other", 7, theirs), entry("sha256:image", 50, mine)}}, nil
	case "sha256:hollow":
		return manifest{Manifests: []ocispec.Descriptor{entry("sha256:none", 50, mine)}}, nil
	case "sha256:archive":
		return manifest{Manifests: []ocispec.Descriptor{entry("sha256:image", 50, mine)}}, nil
	}
	return manifest{}, fmt.Errorf("no %s", name)
}

func TestSizeOf(t *testing.T) {
	for digest, want := range map[string]int64{"sha256:image": 3350, "sha256:both": 3400, "sha256:archive": 3400} {
		if got, err := sizeOf(store, digest, 50); err != nil || got != want {
			t.Errorf("%s: %d bytes, %v; want %d", digest, got, err, want)
		}
	}
	for _, digest := range []string{"sha256:none", "sha256:hollow"} {
		if size, err := sizeOf(store, digest, 50); err == nil || size != 0 {
			t.Errorf("a part of %s is missing, and sizeOf returns %d bytes without an error", digest, size)
		}
	}
}
