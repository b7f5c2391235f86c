package bundle

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// Source lists the files and the properties of a bundle.
type Source struct {
	Version, Profile, MinimumVersion string
	Epoch                            int
	Root                             string // dm-verity description, as on the kernel command line
	RootImage, UKI, SBOM             string // file names
	// name of the file with the root image, compressed by zstd with a window of at most Window
	Packed string
	Time   time.Time
}

// Seal creates the statement of a source and signs it with each of the keys. The caller passes the
// envelope to Write.
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

// Write writes a bundle. The same source and envelope give the same bytes.
func Write(to io.Writer, s Source, envelope []byte) error {
	statement, err := unverified(envelope)
	if err != nil {
		return err
	}
	var parts []Layer
	for _, p := range []struct {
		kind, file string
		part       Part
	}{{TypeRoot, s.Packed, statement.Packed}, {TypeUKI, s.UKI, statement.UKI}, {TypeSBOM, s.SBOM, statement.SBOM}} {
		f, err := os.Open(p.file)
		if err != nil {
			return err
		}
		defer f.Close()
		parts = append(parts, Layer{p.kind, p.part, f})
	}
	return write(to, statement.Version, s.Time, envelope, parts)
}

// Copy is the running version on the disk of a machine.
type Copy struct {
	Envelope []byte      // the signed statement of the version
	Root     io.ReaderAt // the partition with the root image
	UKI      io.ReaderAt
}

// Write writes a bundle with an uncompressed root image. The same version gives the same bytes.
// Write verifies no data; the receiver verifies them.
func (c Copy) Write(to io.Writer) error {
	s, err := unverified(c.Envelope)
	if err != nil {
		return err
	}
	return write(to, s.Version, time.Time{}, c.Envelope, []Layer{
		{TypePlainRoot, s.RootImage, io.NewSectionReader(c.Root, 0, s.RootImage.Size)},
		{TypeUKI, s.UKI, io.NewSectionReader(c.UKI, 0, s.UKI.Size)},
	})
}

// Check reads and verifies the whole version, and returns the digest (lower-case hexadecimal) and
// the size in bytes of the output of Write. It returns an error if the data does not match the
// statement, or if too few trusted keys have signed the statement.
func (c Copy) Check(trust Trust) (digest string, size int64, err error) {
	from, to := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := panics.Do("copy of a bundle", func() error {
			h := sha256.New()
			var n counter
			err := c.Write(io.MultiWriter(to, h, &n))
			digest, size = hex.EncodeToString(h.Sum(nil)), int64(n)
			return err
		})
		done <- errors.Join(err, to.CloseWithError(err))
	}()
	_, err = ReadAll(from, trust)
	if err == nil {
		_, err = io.Copy(io.Discard, from)
	}
	from.CloseWithError(err) // ends the goroutine if it is still writing
	if written := <-done; err == nil {
		err = written
	}
	return digest, size, err
}

// CheckComplete reads the whole version and returns its statement. It returns an error if the parts
// do not match the statement. It does not verify the signatures, because the keys that were trusted
// at the installation may have been replaced since.
func (c Copy) CheckComplete() (Statement, error) {
	s, err := unverified(c.Envelope)
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
			return s, readError(p.name, err)
		}
		if err := read.done(p.name); err != nil {
			return s, err
		}
	}
	return s, nil
}

// counter is an io.Writer that counts bytes.
type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// write writes the archive of a version.
func write(to io.Writer, version string, at time.Time, envelope []byte, parts []Layer) error {
	a := Artifact{Type: TypeBundle, StatementType: TypeStatement, Envelope: envelope, Parts: parts}
	_, err := a.Write(to, at, ocispec.Descriptor{Annotations: map[string]string{ocispec.AnnotationRefName: version}})
	return err
}

// sign signs a statement and returns the DSSE envelope.
func sign(s Statement, keys ...Key) ([]byte, error) {
	payload, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	envelope, err := SignPayload(TypePayload, payload, keys...)
	if err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	return envelope, nil
}

// SignPayload signs a payload with each of the keys and returns the DSSE envelope. The same input
// gives the same bytes.
func SignPayload(payloadType string, payload []byte, keys ...Key) ([]byte, error) {
	var signers []dsse.Signer
	for _, key := range keys {
		signers = append(signers, key.dsse())
	}
	signer, err := dsse.NewEnvelopeSigner(signers...)
	if err != nil {
		return nil, fmt.Errorf("cannot sign: %w", err)
	}
	envelope, err := signer.SignPayload(context.Background(), payloadType, payload)
	if err != nil {
		return nil, fmt.Errorf("cannot sign: %w", err)
	}
	return json.Marshal(envelope)
}

func partOf(file string) (Part, error) {
	sum, size, err := safefile.SHA256(file)
	return Part{SHA256: sum, Size: size}, err
}
