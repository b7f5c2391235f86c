// Package imagesignature reads and verifies signatures of container images, without a network.
//
// It supports the two formats of cosign for signatures with a key. Attackers can write the
// documents, so their sizes are bounded, and no field is used before a key has verified the text
// that contains the field:
//
//	cosign signature   a manifest whose layers are claims (Red Hat's "simple signing"), each
//	                   with its signature in an annotation (cosign, specs/SIGNATURE_SPEC.md)
//	sigstore bundle    a JSON file with a DSSE envelope around an in-toto statement
//	                   (github.com/sigstore/protobuf-specs, sigstore_bundle.proto). It is the
//	                   layer of a manifest, which an index of referrers lists (OCI distribution
//	                   specification 1.1, "Referrers Tag Schema")
//
// In this package, "bundle" means a sigstore bundle.
//
// Certificates of Fulcio, entries of Rekor and timestamps are ignored: only the configured keys
// decide.
package imagesignature

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/orlop-os/orlop/pkg/artifact"
)

// The limits of the documents. A typical claim has 250 bytes, and a typical bundle 10 KiB.
const (
	MaxManifest   = 256 << 10 // bytes of a manifest or an index
	MaxDocument   = 128 << 10 // bytes of a claim or a bundle
	MaxSignatures = 16        // signatures of an image in each format
	maxEncoded    = 8 << 10   // bytes of the signature of a claim, in base64
	maxEnvelope   = 8         // signatures of an envelope
)

// The media types and names of the formats.
const (
	ClaimType           = "application/vnd.dev.cosign.simplesigning.v1+json"
	SignatureAnnotation = "dev.cosignproject.cosign/signature"
	claimKind           = "cosign container image signature"

	bundlePrefix  = "application/vnd.dev.sigstore.bundle" // .v0.3+json, or +json;version=0.2
	statementType = "application/vnd.in-toto+json"
	statement     = "https://in-toto.io/Statement/"
	// signPredicate is the predicate type of a signature. A statement with another type, such as a
	// list of packages, is not a signature of the image.
	signPredicate = "https://sigstore.dev/cosign/sign/v1"
)

// Claim is the content of a signature: the digest of an image ("sha256:…"), and the repository for
// which the signature was made. Repository is empty if the signature names none.
type Claim struct{ Digest, Repository string }

// Open reads a document by its digest and verifies the digest. A document of more than limit bytes
// is an error.
type Open func(digest string, limit int64) ([]byte, error)

// Signature is a signature that no key has verified yet.
type Signature struct {
	payload, signature []byte         // the claim, and its signature; empty for a bundle
	envelope           *dsse.Envelope // the envelope of the bundle; nil for a claim
	problem            error          // why the signature cannot be read, or nil
}

// manifest has the fields of two documents: Layers is from a manifest, and Manifests is from an
// index of referrers.
type manifest struct {
	Layers    artifact.Descriptors `json:"layers"`
	Manifests artifact.Descriptors `json:"manifests"`
}

// Read returns at most MaxSignatures signatures from a manifest, or from the manifests that an
// index of referrers lists. name is the digest of the manifest or the index. Read skips other
// entries of an index, such as lists of packages.
func Read(name string, open Open) ([]Signature, error) {
	top, err := decode(name, open)
	if err != nil {
		return nil, err
	}
	all := claims(top, open)
	for _, entry := range top.Manifests {
		if len(all) == MaxSignatures {
			break
		}
		if strings.HasPrefix(entry.ArtifactType, bundlePrefix) {
			all = append(all, bundle(entry.Digest, open))
		}
	}
	return all, nil
}

// decode reads a manifest or an index. name is its digest.
func decode(name string, open Open) (m manifest, err error) {
	text, err := open(name, MaxManifest)
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("the manifest %s cannot be decoded: %w", name, err)
	}
	return m, nil
}

// claims returns the cosign signatures of a manifest.
func claims(m manifest, open Open) (all []Signature) {
	for _, layer := range m.Layers {
		if layer.MediaType != ClaimType || len(all) == MaxSignatures {
			continue
		}
		var s Signature
		encoded := layer.Annotations[SignatureAnnotation]
		switch {
		case encoded == "":
			s.problem = errors.New("its annotation " + SignatureAnnotation + " is missing")
		case len(encoded) > maxEncoded:
			s.problem = fmt.Errorf("its signature has %d bytes, limit %d", len(encoded), maxEncoded)
		default:
			s.signature, s.problem = base64.StdEncoding.DecodeString(encoded)
		}
		if s.problem == nil {
			s.payload, s.problem = open(layer.Digest.String(), MaxDocument)
		}
		all = append(all, s)
	}
	return all
}

// bundle returns the signature in the bundle that is the only layer of a manifest. name is the
// digest of the manifest.
func bundle(name digest.Digest, open Open) (s Signature) {
	m, err := decode(name.String(), open)
	if err != nil {
		return Signature{problem: err}
	}
	if len(m.Layers) != 1 || !strings.HasPrefix(m.Layers[0].MediaType, bundlePrefix) {
		return Signature{problem: errors.New("its manifest has not exactly one bundle")}
	}
	text, err := open(m.Layers[0].Digest.String(), MaxDocument)
	if err != nil {
		return Signature{problem: err}
	}
	var b struct {
		Envelope *dsse.Envelope `json:"dsseEnvelope"`
	}
	switch err := json.Unmarshal(text, &b); {
	case err != nil:
		s.problem = fmt.Errorf("the bundle cannot be decoded: %w", err)
	case b.Envelope == nil:
		s.problem = errors.New("the bundle has no DSSE envelope; sign with cosign 3, or with cosign 2 and --new-bundle-format")
	case len(b.Envelope.Signatures) > maxEnvelope:
		s.problem = fmt.Errorf("the bundle has %d signatures, limit %d", len(b.Envelope.Signatures), maxEnvelope)
	default:
		s.envelope = b.Envelope
	}
	return s
}

// ErrKey is the error for a signature that was made by none of the keys.
var ErrKey = errors.New("none of the keys made it")

// Verify returns the claim of a signature. It fails unless the signature was made by one of the
// keys.
func (s Signature) Verify(keys []crypto.PublicKey) (Claim, error) {
	if s.problem != nil {
		return Claim{}, s.problem
	}
	for _, key := range keys {
		if s.envelope != nil {
			if text := verifyEnvelope(*s.envelope, key); text != nil {
				return statementClaim(s.envelope.PayloadType, text)
			}
		} else if verifies(key, s.payload, s.signature) {
			return simpleClaim(s.payload)
		}
	}
	return Claim{}, ErrKey
}

// simpleClaim decodes the claim of a cosign signature.
func simpleClaim(text []byte) (Claim, error) {
	var c struct {
		Critical struct {
			Identity struct {
				Reference string `json:"docker-reference"`
			} `json:"identity"`
			Image struct {
				Digest string `json:"docker-manifest-digest"`
			} `json:"image"`
			Type string `json:"type"`
		} `json:"critical"`
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return Claim{}, fmt.Errorf("its claim cannot be decoded: %w", err)
	}
	if c.Critical.Type != claimKind {
		return Claim{}, fmt.Errorf("its claim has the type %.40q, expected %q", c.Critical.Type, claimKind)
	}
	return checked(Claim{c.Critical.Image.Digest, c.Critical.Identity.Reference})
}

// statementClaim decodes the statement of a bundle. kind is the type of the payload of the
// envelope. The statement must have exactly one subject, as statements of cosign do.
func statementClaim(kind string, text []byte) (Claim, error) {
	var s struct {
		Type    string `json:"_type"`
		Subject []struct {
			Digest map[string]string `json:"digest"`
		} `json:"subject"`
		Predicate string `json:"predicateType"`
	}
	if kind != statementType {
		return Claim{}, fmt.Errorf("its payload has the type %.40q, expected %q", kind, statementType)
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return Claim{}, fmt.Errorf("its statement cannot be decoded: %w", err)
	}
	switch {
	case !strings.HasPrefix(s.Type, statement):
		return Claim{}, fmt.Errorf("its statement has the type %.40q, expected %sv1", s.Type, statement)
	case s.Predicate != signPredicate:
		return Claim{}, fmt.Errorf("it is an attestation (%.80q), not a signature of the image", s.Predicate)
	case len(s.Subject) != 1:
		return Claim{}, fmt.Errorf("its statement has %d subjects, expected one", len(s.Subject))
	}
	return checked(Claim{Digest: "sha256:" + s.Subject[0].Digest["sha256"]})
}

// checked returns the claim, or an error if its digest is invalid.
func checked(c Claim) (Claim, error) {
	if !artifact.IsSHA256(digest.Digest(c.Digest)) {
		return Claim{}, fmt.Errorf("its claim has the digest %.80q, expected a SHA-256", c.Digest)
	}
	return c, nil
}

// verifyEnvelope returns the payload of an envelope if the key signed it, else nil.
func verifyEnvelope(e dsse.Envelope, key crypto.PublicKey) []byte {
	// Remove the key IDs, which are unsigned hints (DSSE, protocol.md).
	signatures := make([]dsse.Signature, len(e.Signatures))
	for i, s := range e.Signatures {
		signatures[i] = dsse.Signature{Sig: s.Sig}
	}
	e.Signatures = signatures
	verifier, err := dsse.NewEnvelopeVerifier(envelopeKey{key})
	if err != nil {
		return nil
	}
	_, text, err := verifier.VerifyAndDecode(context.Background(), &e)
	if err != nil {
		return nil
	}
	return text
}

// envelopeKey implements dsse.Verifier.
type envelopeKey struct{ key crypto.PublicKey }

func (k envelopeKey) Verify(_ context.Context, data, signature []byte) error {
	if !verifies(k.key, data, signature) {
		return ErrKey
	}
	return nil
}

func (k envelopeKey) KeyID() (string, error)   { return "", nil }
func (k envelopeKey) Public() crypto.PublicKey { return k.key }

// verifies reports whether a key signed the data with one of the algorithms of cosign: Ed25519; RSA
// with SHA-256; ECDSA with SHA-256; ECDSA on the curve P-384 with SHA-384, and on P-521 with
// SHA-512 (github.com/sigstore/sigstore, pkg/signature).
func verifies(key crypto.PublicKey, data, signature []byte) bool {
	sum := sha256.Sum256(data)
	switch k := key.(type) {
	case ed25519.PublicKey:
		return ed25519.Verify(k, data, signature)
	case *rsa.PublicKey:
		return rsa.VerifyPKCS1v15(k, crypto.SHA256, sum[:], signature) == nil
	case *ecdsa.PublicKey:
		if ecdsa.VerifyASN1(k, sum[:], signature) {
			return true
		}
		switch k.Curve.Params().BitSize {
		case 384:
			sum := sha512.Sum384(data)
			return ecdsa.VerifyASN1(k, sum[:], signature)
		case 521:
			sum := sha512.Sum512(data)
			return ecdsa.VerifyASN1(k, sum[:], signature)
		}
	}
	return false
}
