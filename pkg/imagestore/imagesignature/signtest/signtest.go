// Package signtest signs images for tests, as cosign does with a key.
package signtest

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/orlop-os/orlop/pkg/imagestore/imagesignature"
)

// BundleType is the media type of sigstore bundles.
const BundleType = "application/vnd.dev.sigstore.bundle.v0.3+json"

// Blobs maps digests to documents.
type Blobs map[string][]byte

// Put adds a document, and returns its descriptor.
func (b Blobs) Put(mediaType string, text []byte) ocispec.Descriptor {
	d := digest.FromBytes(text)
	b[d.String()] = text
	return ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(text))}
}

// Open implements imagesignature.Open.
func (b Blobs) Open(name string, limit int64) ([]byte, error) {
	text, found := b[name]
	switch {
	case !found:
		return nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	case int64(len(text)) > limit:
		return nil, fmt.Errorf("%s has more than %d bytes", name, limit)
	}
	return text, nil
}

// Tag returns the tag of an image's signatures (suffix ".sig"), or the tag of the image's index of
// referrers (empty suffix). image is a digest.
func Tag(image, suffix string) string { return strings.ReplaceAll(image, ":", "-") + suffix }

// Claim returns the text that cosign signs for an image: its repository and its digest.
func Claim(repository, image string) []byte {
	return fmt.Appendf(nil, `{"critical":{"identity":{"docker-reference":%q},"image":{"docker-manifest-digest":%q},"type":"cosign container image signature"},"optional":null}`, repository, image)
}

// Statement returns the text that cosign signs in a bundle. image is a digest.
func Statement(image string) []byte {
	return fmt.Appendf(nil, `{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{"sha256":%q}}],"predicateType":"https://sigstore.dev/cosign/sign/v1","predicate":{}}`, strings.TrimPrefix(image, "sha256:"))
}

// Sign signs the text itself with an Ed25519 key, and the SHA-256 digest of the text with other
// keys.
func Sign(key crypto.Signer, text []byte) ([]byte, error) {
	if _, ok := key.(ed25519.PrivateKey); ok {
		return key.Sign(rand.Reader, text, crypto.Hash(0))
	}
	sum := sha256.Sum256(text)
	return key.Sign(rand.Reader, sum[:], crypto.SHA256)
}

// Manifest adds a manifest with a cosign signature for each claim.
func (b Blobs) Manifest(key crypto.Signer, claims ...[]byte) (ocispec.Descriptor, error) {
	config := ocispec.Image{RootFS: ocispec.RootFS{Type: "layers"}}
	m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest}
	for _, claim := range claims {
		signature, err := Sign(key, claim)
		if err != nil {
			return ocispec.Descriptor{}, err
		}
		layer := b.Put(imagesignature.ClaimType, claim)
		layer.Annotations = map[string]string{imagesignature.SignatureAnnotation: base64.StdEncoding.EncodeToString(signature)}
		m.Layers = append(m.Layers, layer)
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, layer.Digest)
	}
	text, err := json.Marshal(config)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	m.Config = b.Put(ocispec.MediaTypeImageConfig, text)
	if text, err = json.Marshal(m); err != nil {
		return ocispec.Descriptor{}, err
	}
	return b.Put(m.MediaType, text), nil
}

// envelopeSigner implements dsse.Signer.
type envelopeSigner struct{ crypto.Signer }

func (s envelopeSigner) Sign(_ context.Context, text []byte) ([]byte, error) {
	return Sign(s.Signer, text)
}
func (s envelopeSigner) KeyID() (string, error) { return "a hint", nil }

// Referrers adds an index of referrers of an image. The index has two entries: a bundle with the
// signed statement, and a list of packages.
func (b Blobs) Referrers(key crypto.Signer, image string, statement []byte) (ocispec.Descriptor, error) {
	signer, err := dsse.NewEnvelopeSigner(envelopeSigner{key})
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	envelope, err := signer.SignPayload(context.Background(), "application/vnd.in-toto+json", statement)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	text, err := json.Marshal(map[string]any{"mediaType": BundleType, "verificationMaterial": map[string]any{"publicKey": map[string]string{"hint": "x"}}, "dsseEnvelope": envelope})
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	subject := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.Digest(image)}
	text, err = json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: BundleType,
		Config: b.Put(ocispec.MediaTypeEmptyJSON, []byte("{}")), Layers: []ocispec.Descriptor{b.Put(BundleType, text)}, Subject: &subject,
	})
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	entry := b.Put(ocispec.MediaTypeImageManifest, text)
	entry.ArtifactType = BundleType
	packages := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("a list of packages"), ArtifactType: "application/spdx+json"}
	text, err = json.Marshal(ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{packages, entry}})
	return b.Put(ocispec.MediaTypeImageIndex, text), err
}
