package imagestore

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// maxManifest is the largest manifest or index that is read; registries refuse larger ones.
const maxManifest = 4 << 20

// manifest is an OCI image manifest or an image index (image-spec, manifest.md and image-index.md); the fields of the
// other one are empty.
type manifest struct {
	ArtifactType string               `json:"artifactType"`
	Config       ocispec.Descriptor   `json:"config"`
	Layers       []ocispec.Descriptor `json:"layers"`
	Manifests    []ocispec.Descriptor `json:"manifests"`
}

// layersSize is that of all layers together, as they were packed, in bytes.
func (m manifest) layersSize() (total int64) {
	for _, l := range m.Layers {
		total += l.Size
	}
	return total
}

// blobs reads a manifest or an index by its digest.
type blobs func(digest string) (manifest, error)

// forUs tells whether an entry of an index is for this machine. One without a platform is for any.
func forUs(d ocispec.Descriptor) bool {
	return d.Platform == nil || d.Platform.OS == "linux" && d.Platform.Architecture == "amd64"
}

// sizeOf is what an image takes in the content store, in bytes: its layers as they were packed, its configuration and its
// manifest. Of an index it is the image for this machine.
func sizeOf(read blobs, digest string, own int64) (int64, error) {
	m, err := read(digest)
	if err != nil {
		return 0, err
	}
	for _, d := range m.Manifests {
		if forUs(d) {
			size, err := sizeOf(read, d.Digest.String(), d.Size)
			if err != nil {
				return 0, err
			}
			return own + size, nil
		}
	}
	return own + m.Config.Size + m.layersSize(), nil
}

// blobs reads from containerd's content store.
func (s *Store) blobs(ctx context.Context) blobs {
	return func(digest string) (m manifest, err error) {
		r, err := s.open(ctx, digest)
		if err != nil {
			return m, err
		}
		defer r.Close()
		text, err := io.ReadAll(io.LimitReader(r, maxManifest+1))
		if err != nil {
			return m, err
		}
		if len(text) > maxManifest {
			return m, fmt.Errorf("images: %s is larger than a manifest may be (%d bytes)", digest, maxManifest)
		}
		if err := json.Unmarshal(text, &m); err != nil {
			return m, fmt.Errorf("images: %s is no manifest: %w", digest, err)
		}
		return m, nil
	}
}
