package extension

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/orlop-os/orlop/pkg/artifact"
	"github.com/orlop-os/orlop/pkg/bundle"
)

// Manifest returns the OCI manifest of an extension. The same input gives the same bytes.
func Manifest(envelope []byte, image bundle.Part) ([]byte, error) {
	return json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: TypeExtension,
		Config: ocispec.DescriptorEmptyJSON,
		Layers: []ocispec.Descriptor{
			describe(TypeStatement, envelope),
			{MediaType: TypeImage, Digest: digest.NewDigestFromEncoded(digest.SHA256, image.SHA256), Size: image.Size},
		},
	})
}

// Parts returns the statement and the image that a manifest names, from an untrusted source.
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
		if l.Digest.Validate() != nil || l.Digest.Algorithm() != digest.SHA256 {
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
// --from-oci-layout` pushes and `orlopctl image import` imports, under a name with a tag. It
// returns the digest of the manifest, "sha256:…". The same input gives the same bytes.
func Write(to io.Writer, name string, at time.Time, envelope []byte, part bundle.Part, image io.Reader) (string, error) {
	manifest, err := Manifest(envelope, part)
	if err != nil {
		return "", err
	}
	root := describe(ocispec.MediaTypeImageManifest, manifest)
	root.ArtifactType = TypeExtension
	root.Annotations = map[string]string{ocispec.AnnotationRefName: name, "io.containerd.image.name": name}
	index, err1 := json.Marshal(ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{root}})
	layout, err2 := json.Marshal(ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion})
	if err := errors.Join(err1, err2); err != nil {
		return "", err
	}
	w := tar.NewWriter(to)
	for _, m := range []struct {
		name    string
		size    int64
		content io.Reader
	}{
		{ocispec.ImageLayoutFile, int64(len(layout)), bytes.NewReader(layout)},
		{ocispec.ImageIndexFile, int64(len(index)), bytes.NewReader(index)},
		{blob(root.Digest), int64(len(manifest)), bytes.NewReader(manifest)},
		{blob(ocispec.DescriptorEmptyJSON.Digest), ocispec.DescriptorEmptyJSON.Size, bytes.NewReader(ocispec.DescriptorEmptyJSON.Data)},
		{blob(digest.FromBytes(envelope)), int64(len(envelope)), bytes.NewReader(envelope)},
		{"blobs/sha256/" + part.SHA256, part.Size, image},
	} {
		if err := w.WriteHeader(&tar.Header{Name: m.name, Mode: 0o644, Size: m.size, ModTime: at, Format: tar.FormatUSTAR}); err != nil {
			return "", err
		}
		if _, err := io.Copy(w, m.content); err != nil {
			return "", fmt.Errorf("%s: %w", m.name, err)
		}
	}
	return root.Digest.String(), w.Close()
}

func blob(d digest.Digest) string { return "blobs/sha256/" + d.Encoded() }

func describe(kind string, content []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: kind, Digest: digest.FromBytes(content), Size: int64(len(content))}
}
