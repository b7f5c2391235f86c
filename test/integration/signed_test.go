package integration

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/netip"
	"os"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/rogpeppe/go-internal/testscript"
	"go.yaml.in/yaml/v3"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/oci"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/orlop-os/orlop/pkg/imagestore/imagesignature/signtest"
	"github.com/orlop-os/orlop/test/testimage"
)

// signedVerb starts a registry with an unsigned image, a correctly signed image and an image with
// the signature of a wrong key. It also writes an archive of a further signed image, and the rules
// by which a machine requires signatures.
func (s *story) signedVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 4, 4, "signed PATCH RULES ARCHIVE NAME")
	name := args[3]
	host, path, _ := strings.Cut(name, "/")
	key, stranger := signingKey(ts), signingKey(ts)
	handler := registryWith(ts, path, func(ctx context.Context, repository *remote.Repository) {
		for tag, by := range map[string]crypto.Signer{"unsigned": nil, "wrong": stranger, "good": key} {
			ts.Check(pushSigned(ctx, ts, repository, name, tag, tag, "", by))
		}
	})
	dir := ts.MkAbs("signed")
	store, err := oci.New(dir)
	ts.Check(err)
	ts.Check(pushSigned(context.Background(), ts, store, name, "imported", name+":imported", name+":", key))
	ts.Check(archive(ts.MkAbs(args[2]), dir))
	registry, err := s.network.NewHost("signed", netip.Addr{})
	ts.Check(err)
	ca, err := serveTLS(registry, handler)
	ts.Check(err)
	writeRegistries(ts, args[0], map[string]any{"address": registry.Addr().String(), "mirrors": []string{host}, "ca": string(ca)})
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	ts.Check(err)
	rules, err := yaml.Marshal(map[string]any{"kind": "Machine", "spec": map[string]any{"node": map[string]any{"imagePolicy": []any{
		map[string]any{"images": []string{host + "/*"}, "keys": []string{string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}))}},
		map[string]any{"images": []string{"test.orlop.dev/*"}, "unsigned": true},
	}}}})
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), rules, 0o600))
}

func signingKey(ts *testscript.TestScript) crypto.Signer {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ts.Check(err)
	return key
}

// pushSigned pushes the test image NAME:TAG under the given reference. If key is not nil, it also
// pushes the signature of the image. The tag of the signature is the prefix and cosign's tag.
func pushSigned(ctx context.Context, ts *testscript.TestScript, to oras.Target, name, tag, reference, prefix string, key crypto.Signer) error {
	file, full := ts.MkAbs(tag+".tar"), name+":"+tag
	if err := testimage.Write(ctx, file, full); err != nil {
		return err
	}
	from, err := oci.NewFromTar(ctx, file)
	if err != nil {
		return err
	}
	image, err := oras.Copy(ctx, from, full, to, reference, oras.DefaultCopyOptions)
	if err != nil || key == nil {
		return err
	}
	blobs := signtest.Blobs{}
	top, err := blobs.Manifest(key, signtest.Claim(name, image.Digest.String()))
	if err != nil {
		return err
	}
	for d, text := range blobs {
		if d != top.Digest.String() {
			err = errors.Join(err, to.Push(ctx, ocispec.Descriptor{MediaType: "application/octet-stream", Digest: digest.Digest(d), Size: int64(len(text))}, bytes.NewReader(text)))
		}
	}
	if err != nil {
		return err
	}
	if err := to.Push(ctx, top, bytes.NewReader(blobs[top.Digest.String()])); err != nil {
		return err
	}
	return to.Tag(ctx, top, prefix+signtest.Tag(image.Digest.String(), ".sig"))
}

// archive writes the files of the directory dir into a tar archive.
func archive(file, dir string) error {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if err := errors.Join(w.AddFS(os.DirFS(dir)), w.Close()); err != nil {
		return err
	}
	return os.WriteFile(file, out.Bytes(), 0o600)
}
