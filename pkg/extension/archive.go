package extension

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/orlop-os/orlop/pkg/artifact"
	"github.com/orlop-os/orlop/pkg/bundle"
)

// artifactOf returns the artifact of an extension, which consists of a signed statement and an
// image.
func artifactOf(envelope []byte, part bundle.Part, image io.Reader) bundle.Artifact {
	return bundle.Artifact{Type: TypeExtension, StatementType: TypeStatement, Envelope: envelope, Parts: []bundle.Layer{{Type: TypeImage, Part: part, Content: image}}}
}

// Manifest returns the OCI manifest of an extension. The same input gives the same bytes.
func Manifest(envelope []byte, image bundle.Part) ([]byte, error) {
	return artifactOf(envelope, image, nil).Manifest()
}

// Parts returns the statement and the image that the manifest of an extension names. The manifest
// can be from an untrusted source.
func Parts(manifest []byte) (statement, image artifact.Blob, err error) {
	if len(manifest) > MaxManifest {
		return statement, image, fmt.Errorf("its manifest has more than %d KiB", MaxManifest>>10)
	}
	var m struct {
		ArtifactType string               `json:"artifactType"`
		Layers       artifact.Descriptors `json:"layers"`
	}
	if err := json.Unmarshal(manifest, &m); err != nil {
		return statement, image, fmt.Errorf("its manifest cannot be read: %w", err)
	}
	if m.ArtifactType != TypeExtension || len(m.Layers) != 2 || m.Layers[0].MediaType != TypeStatement || m.Layers[1].MediaType != TypeImage {
		return statement, image, fmt.Errorf("it is not an extension (type %q, %d layers); `imager extension` makes one", shortened(m.ArtifactType), len(m.Layers))
	}
	for i, to := range []*artifact.Blob{&statement, &image} {
		l, most := m.Layers[i], []int64{MaxStatement, MaxImage}[i]
		if !artifact.IsSHA256(l.Digest) {
			return statement, image, fmt.Errorf("the digest %q of a layer is not a SHA-256", shortened(string(l.Digest)))
		}
		if l.Size <= 0 || l.Size > most {
			return statement, image, fmt.Errorf("it is too large: its layer %s has %d bytes, and at most %d are permitted", l.MediaType, l.Size, most)
		}
		*to = artifact.Blob{SHA256: l.Digest.Encoded(), Size: l.Size}
	}
	return statement, image, nil
}

// Write writes an extension as an OCI archive (image-spec, image-layout.md), which `oras copy
// --from-oci-layout` can push and `orlopctl image import` can import. name is the name of the
// extension, with a tag. Write returns the digest of the manifest, "sha256:…". The same input gives
// the same bytes.
func Write(to io.Writer, name string, at time.Time, envelope []byte, part bundle.Part, image io.Reader) (string, error) {
	return artifactOf(envelope, part, image).Write(to, at, ocispec.Descriptor{
		ArtifactType: TypeExtension,
		Annotations:  map[string]string{ocispec.AnnotationRefName: name, "io.containerd.image.name": name},
	})
}
