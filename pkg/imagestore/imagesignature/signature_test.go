package imagesignature_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/orlop-os/orlop/pkg/imagestore/imagesignature"
	"github.com/orlop-os/orlop/pkg/imagestore/imagesignature/signtest"
)

const repository = "registry.example.com/team/app"

var image = digest.FromString("image").String()

// must returns the value of a call that cannot fail in a test.
func must[V any](v V, err error) V {
	if err != nil {
		panic(err)
	}
	return v
}

func curve(c elliptic.Curve) crypto.Signer { return must(ecdsa.GenerateKey(c, rand.Reader)) }

func keys(all ...crypto.Signer) (public []crypto.PublicKey) {
	for _, k := range all {
		public = append(public, k.Public())
	}
	return public
}

// TestVerify: Verify accepts signatures in each format by each kind of key, and rejects them if it
// gets only other keys.
func TestVerify(t *testing.T) {
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	stranger := curve(elliptic.P256())
	for name, key := range map[string]crypto.Signer{
		"P-256": curve(elliptic.P256()), "P-384": curve(elliptic.P384()), "P-521": curve(elliptic.P521()), "Ed25519": ed, "RSA": must(rsa.GenerateKey(rand.Reader, 2048)),
	} {
		blobs := signtest.Blobs{}
		for format, c := range map[string]struct {
			top  ocispec.Descriptor
			want imagesignature.Claim
		}{
			"cosign": {must(blobs.Manifest(key, signtest.Claim(repository, image))), imagesignature.Claim{Digest: image, Repository: repository}},
			"bundle": {must(blobs.Referrers(key, image, signtest.Statement(image))), imagesignature.Claim{Digest: image}},
		} {
			all, err := imagesignature.Read(c.top.Digest.String(), blobs.Open)
			if err != nil || len(all) != 1 {
				t.Fatalf("%s, %s: %d signatures, %v", name, format, len(all), err)
			}
			if got, err := all[0].Verify(keys(stranger, key)); got != c.want || err != nil {
				t.Errorf("%s, %s: %+v, %v", name, format, got, err)
			}
			if got, err := all[0].Verify(keys(stranger)); !errors.Is(err, imagesignature.ErrKey) {
				t.Errorf("%s, %s, by another key: %+v, %v", name, format, got, err)
			}
			if got, err := all[0].Verify(nil); !errors.Is(err, imagesignature.ErrKey) {
				t.Errorf("%s, %s, without keys: %+v, %v", name, format, got, err)
			}
		}
	}
}

// changed returns the blobs with a text in place of another, under the digests of the originals: as
// if the reader of the store did not check them.
func changed(blobs signtest.Blobs, old, text string) signtest.Blobs {
	out := signtest.Blobs{}
	for d, b := range blobs {
		out[d] = bytes.ReplaceAll(b, []byte(old), []byte(text))
	}
	return out
}

// TestRefused: Verify rejects invalid signatures, although most of them are by a trusted key.
func TestRefused(t *testing.T) {
	key := curve(elliptic.P256())
	other := digest.FromString("another image").String()
	claimed := func(claim string) func(signtest.Blobs) (ocispec.Descriptor, error) {
		return func(b signtest.Blobs) (ocispec.Descriptor, error) { return b.Manifest(key, []byte(claim)) }
	}
	stated := func(statement string) func(signtest.Blobs) (ocispec.Descriptor, error) {
		return func(b signtest.Blobs) (ocispec.Descriptor, error) { return b.Referrers(key, image, []byte(statement)) }
	}
	claim, statement := string(signtest.Claim(repository, image)), string(signtest.Statement(image))
	for _, c := range []struct {
		name     string
		sign     func(signtest.Blobs) (ocispec.Descriptor, error)
		old, now string // after the signature, each text old is replaced by the text now
		want     string
	}{
		{"a changed claim", claimed(claim), image, other, "none of the keys made it"},
		{"a changed statement", stated(statement), `"payload":"`, `"payload":"AAAA`, "none of the keys made it"},
		{"another payload type", stated(statement), "application/vnd.in-toto+json", "application/vnd.in-toto+yaml", "none of the keys made it"},
		{"not base64", claimed(claim), `cosign/signature":"`, `cosign/signature":"!`, "illegal base64 data at input byte 0"},
		{"no signature", claimed(claim), "dev.cosignproject.cosign/signature", "x", "its annotation dev.cosignproject.cosign/signature is missing"},
		{"a long signature", claimed(claim), `cosign/signature":"`, `cosign/signature":"` + strings.Repeat("A", 9<<10), "bytes, limit 8192"},
		{"a large claim", claimed(claim + strings.Repeat(" ", imagesignature.MaxDocument)), "", "", "has more than 131072 bytes"},
		{"no JSON", claimed("image"), "", "", "its claim cannot be decoded"},
		{"another type", claimed(strings.ReplaceAll(claim, "cosign container", "atomic container")), "", "", `its claim has the type "atomic container image signature"`},
		{"no digest", claimed(strings.ReplaceAll(claim, image, "")), "", "", `its claim has the digest "", expected a SHA-256`},
		{"SHA-512", claimed(strings.ReplaceAll(claim, image, "sha512:"+strings.Repeat("a", 128))), "", "", "expected a SHA-256"},
		{"a list of packages", stated(strings.ReplaceAll(statement, "https://sigstore.dev/cosign/sign/v1", "https://spdx.dev/Document")), "", "", "it is an attestation"},
		{"another statement", stated(strings.ReplaceAll(statement, "https://in-toto.io/", "https://example.com/")), "", "", "its statement has the type"},
		{"two subjects", stated(strings.ReplaceAll(statement, `"subject":[`, `"subject":[{},`)), "", "", "its statement has 2 subjects"},
		{"no subject", stated(strings.ReplaceAll(statement, `"sha256"`, `"sha512"`)), "", "", "expected a SHA-256"},
		{"no envelope", stated(statement), "dsseEnvelope", "messageSignature", "the bundle has no DSSE envelope"},
		{"no bundle", stated(statement), `"layers":[`, `"blobs":[`, "its manifest has not exactly one bundle"},
		{"many signatures", stated(statement), `"signatures":[`, `"signatures":[` + strings.Repeat("{},", 8), "the bundle has 9 signatures, limit 8"},
	} {
		blobs := signtest.Blobs{}
		top := must(c.sign(blobs))
		if c.old != "" {
			blobs = changed(blobs, c.old, c.now)
		}
		all, err := imagesignature.Read(top.Digest.String(), blobs.Open)
		if err != nil || len(all) != 1 {
			t.Errorf("%s: %d signatures, %v", c.name, len(all), err)
			continue
		}
		if got, err := all[0].Verify(keys(key)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %+v, %v; want %s", c.name, got, err, c.want)
		}
	}
}

// TestBounds: Read returns at most MaxSignatures signatures, and rejects manifests beyond the
// limits.
func TestBounds(t *testing.T) {
	key := curve(elliptic.P256())
	blobs := signtest.Blobs{}
	var many [][]byte
	for i := range imagesignature.MaxSignatures + 5 {
		many = append(many, fmt.Appendf(nil, "%d", i))
	}
	top := must(blobs.Manifest(key, many...))
	if all, err := imagesignature.Read(top.Digest.String(), blobs.Open); err != nil || len(all) != imagesignature.MaxSignatures {
		t.Errorf("%d signatures, %v", len(all), err)
	}
	for name, text := range map[string]string{
		"large": strings.Repeat(" ", imagesignature.MaxManifest+1), "no JSON": "x", "a list that is too long": `{"layers":[` + strings.Repeat("{},", 9000) + `{}]}`,
	} {
		if all, err := imagesignature.Read(blobs.Put("", []byte(text)).Digest.String(), blobs.Open); err == nil {
			t.Errorf("%s: %d signatures", name, len(all))
		}
	}
	if _, err := imagesignature.Read(image, blobs.Open); err == nil {
		t.Error("Read returns no error for a missing manifest")
	}
}

// FuzzRead: no document leads to more reads than the limits, or to a claim that no key signed.
func FuzzRead(f *testing.F) {
	key := curve(elliptic.P256())
	blobs := signtest.Blobs{}
	for _, top := range []ocispec.Descriptor{must(blobs.Manifest(key, signtest.Claim(repository, image))), must(blobs.Referrers(key, image, signtest.Statement(image)))} {
		for _, text := range blobs {
			f.Add(blobs[top.Digest.String()], text)
		}
	}
	trusted := keys(curve(elliptic.P256()))
	f.Fuzz(func(t *testing.T, top, others []byte) {
		reads := 0
		all, _ := imagesignature.Read("top", func(name string, _ int64) ([]byte, error) {
			if reads++; name == "top" {
				return top, nil
			}
			return others, nil
		})
		if limit := 1 + 2*imagesignature.MaxSignatures; reads > limit {
			t.Errorf("read %d documents", reads)
		}
		for _, s := range all {
			if claim, err := s.Verify(trusted); err == nil {
				t.Errorf("Verify accepts the claim %+v by a key that has signed nothing", claim)
			}
		}
	})
}
