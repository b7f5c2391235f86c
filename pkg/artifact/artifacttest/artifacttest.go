// Package artifacttest makes artifacts in memory, for tests of packages that fetch and read them.
package artifacttest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"io/fs"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/orlop-os/orlop/pkg/artifact"
)

// Source is an artifact.Source of blobs by SHA-256.
type Source map[string][]byte

// Put adds an artifact with one layer for each text. The layers have no names. It returns the
// SHA-256 of the manifest.
func (s Source) Put(texts ...string) string {
	m := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		ArtifactType: "application/vnd.example.addon", Config: ocispec.DescriptorEmptyJSON,
	}
	s.blob(ocispec.DescriptorEmptyJSON.Data)
	for _, text := range texts {
		m.Layers = append(m.Layers, ocispec.Descriptor{MediaType: "application/yaml", Digest: s.blob([]byte(text)), Size: int64(len(text))})
	}
	content, err := json.Marshal(m)
	if err != nil {
		panic(err) // texts and numbers can always be encoded
	}
	return s.blob(content).Encoded()
}

func (s Source) blob(content []byte) digest.Digest {
	d := digest.FromBytes(content)
	s[d.Encoded()] = content
	return d
}

// Open implements artifact.Source.
func (s Source) Open(_ context.Context, b artifact.Blob) (io.ReadCloser, error) {
	content, there := s[b.SHA256]
	if !there {
		return nil, fs.ErrNotExist
	}
	return io.NopCloser(bytes.NewReader(content)), nil
}
