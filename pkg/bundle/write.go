package bundle

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
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
	Epoch                            int
	Root                             string // for dm-verity, as it stands on the command line
	RootImage, UKI, SBOM             string // file names
	// file with the root image as zstd; it refers back no more than Window
	Packed string
	Time   time.Time
}

// Seal signs what a source holds, by each of some keys. The result belongs to Write.
func (s Source) Seal(keys ...Key) (envelope []byte, err error) {
	statement := Statement{Version: s.Version, Profile: s.Profile, MinimumVersion: s.MinimumVersion, Epoch: s.Epoch, Root: s.Root}
	for _, p := range []struct {
		file string
		part *Part
	}{{s.RootImage, &statement.RootImage}, {s.Packed, &statement.Packed}, {s.UKI, &statement.UKI}, {s.SBOM, &statement.SBOM}} {
		var err error
		if *p.part, err = partOf(p.file); err != nil {
			return nil, err
		}
	}
	if err := statement.check(); err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	return sign(statement, keys...)
}

// Write makes a bundle. The same source and envelope give the same bytes.
func Write(to io.Writer, s Source, envelope []byte) error {
	statement, err := unproved(envelope)
	if err != nil {
		return err
	}
	var parts []member
	for _, p := range []struct {
		kind, file string
		part       Part
	}{{TypeRoot, s.Packed, statement.Packed}, {TypeUKI, s.UKI, statement.UKI}, {TypeSBOM, s.SBOM, statement.SBOM}} {
		f, err := os.Open(p.file)
		if err != nil {
			return err
		}
		defer f.Close()
		parts = append(parts, member{p.kind, p.part, f})
	}
	return write(to, statement.Version, s.Time, envelope, parts)
}

// Copy is a version as it lies on the disk of a machine that runs it.
type Copy struct {
	Envelope []byte      // its signed statement
	Root     io.ReaderAt // the partition of the root image
	UKI      io.ReaderAt
}

// Write makes a bundle of it that is not packed. The same version gives the same bytes. Nothing is
// checked: whoever takes it does.
func (c Copy) Write(to io.Writer) error {
	s, err := unproved(c.Envelope)
	if err != nil {
		return err
	}
	return write(to, s.Version, time.Time{}, c.Envelope, []member{
		{TypePlainRoot, s.RootImage, io.NewSectionReader(c.Root, 0, s.RootImage.Size)},
		{TypeUKI, s.UKI, io.NewSectionReader(c.UKI, 0, s.UKI.Size)},
	})
}

// Check reads all of it, and returns the digest (lower-case hexadecimal) and the size in bytes of
// what Write makes. It is an error if that is not what the statement promises, or if nobody who is
// trusted has signed that.
func (c Copy) Check(trust Trust) (digest string, size int64, err error) {
	from, to := io.Pipe()
	done := make(chan error, 1)
	go func() {
		h := sha256.New()
		var n counter
		err := c.Write(io.MultiWriter(to, h, &n))
		digest, size = hex.EncodeToString(h.Sum(nil)), int64(n)
		done <- errors.Join(err, to.CloseWithError(err))
	}()
	err = check(from, trust)
	from.CloseWithError(err) // a writer that goes on finds out
	if written := <-done; err == nil {
		err = written
	}
	return digest, size, err
}

// CheckComplete reads all of it, and returns what its statement says of it. It is an error if the parts are
// not what that promises. Who has signed it is not asked: a key that was trusted when the version
// came may be replaced since.
func (c Copy) CheckComplete() (Statement, error) {
	s, err := unproved(c.Envelope)
	if err != nil {
		return Statement{}, err
	}
	for _, p := range []struct {
		name string
		want Part
		from io.ReaderAt
	}{{"root image", s.RootImage, c.Root}, {"unified kernel image", s.UKI, c.UKI}} {
		read := newChecked(io.NewSectionReader(p.from, 0, p.want.Size), p.want)
		if _, err := io.Copy(io.Discard, read); err != nil {
			return s, cut(p.name, err)
		}
		if err := read.done(p.name); err != nil {
			return s, err
		}
	}
	return s, nil
}

// check reads a bundle to its end, and keeps nothing.
func check(from io.Reader, trust Trust) error {
	r, err := Open(from, trust)
	if err != nil {
		return err
	}
	if err := r.Root(io.Discard); err != nil {
		return err
	}
	if _, err := r.UKI(); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, from)
	return err
}

// counter counts what is written to it.
type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// member is a part with its content.
type member struct {
	kind    string
	part    Part
	content io.Reader
}

// write makes the archive.
func write(to io.Writer, version string, at time.Time, envelope []byte, parts []member) error {
	layers := []ocispec.Descriptor{describe(TypeStatement, envelope)}
	for _, p := range parts {
		layers = append(layers, ocispec.Descriptor{MediaType: p.kind, Digest: digest.NewDigestFromEncoded(digest.SHA256, p.part.SHA256), Size: p.part.Size})
	}
	// The artifact guidelines of the image specification: an empty configuration, and the type
	// beside it.
	manifest, err := json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: TypeBundle,
		Config: ocispec.DescriptorEmptyJSON, Layers: layers,
	})
	if err != nil {
		return err
	}
	root := describe(ocispec.MediaTypeImageManifest, manifest)
	root.Annotations = map[string]string{ocispec.AnnotationRefName: version}
	index, err := json.Marshal(ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{root}})
	if err != nil {
		return err
	}
	layout, err := json.Marshal(ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion})
	if err != nil {
		return err
	}

	w := tar.NewWriter(to)
	add := func(name string, size int64, content io.Reader) error {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: size, ModTime: at, Format: tar.FormatUSTAR}); err != nil {
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
		if err := add(m.name, int64(len(m.content)), bytes.NewReader(m.content)); err != nil {
			return err
		}
	}
	for _, p := range parts {
		if err := add(p.part.blob(), p.part.Size, p.content); err != nil {
			return err
		}
	}
	// The empty configuration is a blob of the layout too; a reader of ours ends before it.
	if err := add(blob(ocispec.DescriptorEmptyJSON.Digest), ocispec.DescriptorEmptyJSON.Size, bytes.NewReader(ocispec.DescriptorEmptyJSON.Data)); err != nil {
		return err
	}
	return w.Close()
}

func blob(d digest.Digest) string { return "blobs/sha256/" + d.Encoded() }

// blob is the part's name in the archive.
func (p Part) blob() string { return "blobs/sha256/" + p.SHA256 }

func describe(kind string, content []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: kind, Digest: digest.FromBytes(content), Size: int64(len(content))}
}

// sign wraps a statement.
func sign(s Statement, keys ...Key) ([]byte, error) {
	payload, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	var sides []dsse.Signer
	for _, key := range keys {
		sides = append(sides, key.side())
	}
	signer, err := dsse.NewEnvelopeSigner(sides...)
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
