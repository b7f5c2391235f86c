package bundle

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Artifact is an OCI artifact that consists of a signed statement and its parts: a bundle, or an
// artifact with other types, such as an extension. The same content gives the same bytes.
type Artifact struct {
	Type          string // artifact type
	StatementType string // media type of the envelope
	Envelope      []byte
	Parts         []Layer
}

// Layer is a part with its media type. Artifact.Write reads Content to its end; no other function
// reads it.
type Layer struct {
	Type    string
	Part    Part
	Content io.Reader
}

// Manifest returns the OCI manifest. The artifact guidelines of the image specification require an
// empty configuration and the artifact type.
func (a Artifact) Manifest() ([]byte, error) {
	layers := []ocispec.Descriptor{describe(a.StatementType, a.Envelope)}
	for _, p := range a.Parts {
		layers = append(layers, ocispec.Descriptor{MediaType: p.Type, Digest: digest.NewDigestFromEncoded(digest.SHA256, p.Part.SHA256), Size: p.Part.Size})
	}
	return json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: a.Type,
		Config: ocispec.DescriptorEmptyJSON, Layers: layers,
	})
}

// Write writes the artifact as an OCI archive (image-spec, image-layout.md). All files in it have
// the time `at`. In the archive, the statement is before the parts. The index contains the artifact
// type and the annotations of `root`. Write returns the digest of the manifest, "sha256:…".
func (a Artifact) Write(to io.Writer, at time.Time, root ocispec.Descriptor) (string, error) {
	manifest, err := a.Manifest()
	if err != nil {
		return "", err
	}
	described := describe(ocispec.MediaTypeImageManifest, manifest)
	described.ArtifactType, described.Annotations = root.ArtifactType, root.Annotations
	index, err1 := json.Marshal(ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{described}})
	layout, err2 := json.Marshal(ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion})
	if err := errors.Join(err1, err2); err != nil {
		return "", err
	}
	w := tar.NewWriter(to)
	add := func(name string, size int64, content io.Reader) error {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: size, ModTime: at, Format: tar.FormatUSTAR}); err != nil {
			return err
		}
		_, err := io.Copy(w, content)
		return err
	}
	addText := func(name string, text []byte) error { return add(name, int64(len(text)), bytes.NewReader(text)) }
	for _, m := range []struct {
		name string
		text []byte
	}{
		{ocispec.ImageLayoutFile, layout},
		{ocispec.ImageIndexFile, index},
		{blob(described.Digest), manifest},
		{blob(digest.FromBytes(a.Envelope)), a.Envelope},
	} {
		if err := addText(m.name, m.text); err != nil {
			return "", err
		}
	}
	for _, p := range a.Parts {
		if err := add(p.Part.blob(), p.Part.Size, p.Content); err != nil {
			return "", err
		}
	}
	// The OCI layout requires the blob of the empty configuration, after the parts; Reader stops
	// before this blob.
	if err := addText(blob(ocispec.DescriptorEmptyJSON.Digest), ocispec.DescriptorEmptyJSON.Data); err != nil {
		return "", err
	}
	return described.Digest.String(), w.Close()
}

func blob(d digest.Digest) string { return "blobs/sha256/" + d.Encoded() }

// blob returns the name of the part in the archive.
func (p Part) blob() string { return "blobs/sha256/" + p.SHA256 }

func describe(kind string, content []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: kind, Digest: digest.FromBytes(content), Size: int64(len(content))}
}
