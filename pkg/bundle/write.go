package bundle

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
)

// Source is what a bundle is made of: files, and what is said of them.
type Source struct {
	Version, Profile, MinimumVersion string
	Root                             string // for dm-verity, as it stands on the command line
	RootImage, UKI, SBOM             string // file names
	Packed                           string // file with the root image as zstd; it refers back no more than Window
	Time                             time.Time
}

// Write makes a bundle. The same source and key give the same bytes.
func Write(to io.Writer, s Source, key Key) error {
	statement := Statement{Version: s.Version, Profile: s.Profile, MinimumVersion: s.MinimumVersion, Root: s.Root}
	for _, p := range []struct {
		file string
		part *Part
	}{{s.RootImage, &statement.RootImage}, {s.Packed, &statement.Packed}, {s.UKI, &statement.UKI}, {s.SBOM, &statement.SBOM}} {
		var err error
		if *p.part, err = partOf(p.file); err != nil {
			return err
		}
	}
	if err := statement.check(); err != nil {
		return fmt.Errorf("bundle: %w", err)
	}
	envelope, err := sign(statement, key)
	if err != nil {
		return err
	}
	layers := []ocispec.Descriptor{
		describe(TypeStatement, envelope),
		{MediaType: TypeRoot, Digest: digest.Digest("sha256:" + statement.Packed.SHA256), Size: statement.Packed.Size},
		{MediaType: TypeUKI, Digest: digest.Digest("sha256:" + statement.UKI.SHA256), Size: statement.UKI.Size},
		{MediaType: TypeSBOM, Digest: digest.Digest("sha256:" + statement.SBOM.SHA256), Size: statement.SBOM.Size},
	}
	// The artifact guidelines of the image specification: an empty configuration, and the type beside it.
	manifest, err := json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: TypeBundle,
		Config: ocispec.DescriptorEmptyJSON, Layers: layers,
	})
	if err != nil {
		return err
	}
	root := describe(ocispec.MediaTypeImageManifest, manifest)
	root.Annotations = map[string]string{ocispec.AnnotationRefName: s.Version}
	index, err := json.Marshal(ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{root}})
	if err != nil {
		return err
	}
	layout, err := json.Marshal(ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion})
	if err != nil {
		return err
	}

	w := tar.NewWriter(to)
	member := func(name string, size int64, content io.Reader) error {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: size, ModTime: s.Time, Format: tar.FormatUSTAR}); err != nil {
			return err
		}
		_, err := io.Copy(w, content)
		return err
	}
	for _, m := range []struct {
		name    string
		content []byte
	}{
		{ocispec.ImageLayoutFile, layout},
		{ocispec.ImageIndexFile, index},
		{blob(root.Digest), manifest},
		{blob(layers[0].Digest), envelope},
	} {
		if err := member(m.name, int64(len(m.content)), bytes.NewReader(m.content)); err != nil {
			return err
		}
	}
	for i, file := range []string{s.Packed, s.UKI, s.SBOM} {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		err = member(blob(layers[i+1].Digest), layers[i+1].Size, f)
		f.Close()
		if err != nil {
			return err
		}
	}
	// The empty configuration is a blob of the layout too; a reader of ours ends before it.
	if err := member(blob(ocispec.DescriptorEmptyJSON.Digest), ocispec.DescriptorEmptyJSON.Size, bytes.NewReader(ocispec.DescriptorEmptyJSON.Data)); err != nil {
		return err
	}
	return w.Close()
}

func blob(d digest.Digest) string { return "blobs/sha256/" + d.Encoded() }

func describe(kind string, content []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: kind, Digest: digest.FromBytes(content), Size: int64(len(content))}
}

// sign wraps a statement.
func sign(s Statement, key Key) ([]byte, error) {
	payload, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	public, _ := key.private.Public().(ed25519.PublicKey)
	signer, err := dsse.NewEnvelopeSigner(side{public, key.private})
	if err != nil {
		return nil, err
	}
	envelope, err := signer.SignPayload(context.Background(), TypePayload, payload)
	if err != nil {
		return nil, fmt.Errorf("bundle: cannot sign: %w", err)
	}
	return json.Marshal(envelope)
}

func partOf(file string) (Part, error) {
	f, err := os.Open(file)
	if err != nil {
		return Part{}, err
	}
	defer f.Close()
	h := sha256.New()
	size, err := io.Copy(h, f)
	return Part{SHA256: hex.EncodeToString(h.Sum(nil)), Size: size}, err
}
