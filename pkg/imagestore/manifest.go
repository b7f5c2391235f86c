package imagestore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/orlop-os/orlop/pkg/artifact"
)

// maxManifest is the maximum size of a manifest, an index or a configuration, in bytes. Registries
// reject larger manifests.
const maxManifest = 4 << 20

// manifest is an OCI image manifest or an image index (image-spec, manifest.md and image-index.md);
// an image manifest has Config and Layers, an index has Manifests.
type manifest struct {
	ArtifactType string               `json:"artifactType"`
	Config       ocispec.Descriptor   `json:"config"`
	Layers       artifact.Descriptors `json:"layers"`
	Manifests    artifact.Descriptors `json:"manifests"`
}

// layersSize returns the size of all layers together in bytes, as stored (usually compressed).
func (m manifest) layersSize() (total int64) {
	for _, l := range m.Layers {
		total += l.Size
	}
	return total
}

// texts is a function that reads a manifest, an index or a configuration by its digest. It fails if
// the content has more than maxManifest bytes.
type texts func(digest string) ([]byte, error)

// decoded decodes a manifest or an index.
func decoded(digest string, text []byte) (m manifest, err error) {
	if err := json.Unmarshal(text, &m); errors.Is(err, artifact.ErrDescriptors) {
		return m, fmt.Errorf("%w: %w", errBounds, err)
	} else if err != nil {
		return m, fmt.Errorf("images: %s: cannot parse manifest: %w", digest, err)
	}
	return m, nil
}

// sizeOf returns the size of an image in the content store, in bytes: its compressed layers, its
// configuration, its manifest, and the indexes that lead to it. For an index it returns the size of
// the image for this machine, or the size of the index alone if there is no such image.
func sizeOf(read texts, name string, own int64) (int64, error) {
	w := walk{read: read}
	found, err := w.choose(ocispec.Descriptor{Digest: digest.Digest(name), Size: own}, 0)
	if err != nil {
		return 0, err
	}
	if found == nil {
		return own, nil
	}
	return found.above + found.Size + found.manifest.Config.Size + found.manifest.layersSize(), nil
}

// texts returns a function that reads from containerd's content store.
func (s *Store) texts(ctx context.Context) texts {
	return func(digest string) ([]byte, error) {
		r, err := s.open(ctx, digest)
		if err != nil {
			return nil, err
		}
		defer r.Close()
		text, err := io.ReadAll(io.LimitReader(r, maxManifest+1))
		if err != nil {
			return nil, err
		}
		if len(text) > maxManifest {
			return nil, fmt.Errorf("images: %s: larger than the limit of a manifest (%d bytes)", digest, maxManifest)
		}
		return text, nil
	}
}
