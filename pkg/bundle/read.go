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
	"hash"
	"io"

	"github.com/klauspost/compress/zstd"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
)

const (
	// maxStatement limits the bytes of a bundle that are held in memory before the statement is
	// verified.
	maxStatement = 64 << 10
	// Head is the number of bytes at the beginning of a bundle that suffices for Open. They contain
	// the statement, the small files before it, and their tar headers.
	Head = 2 * maxStatement
	// Window is the maximum zstd window of a compressed root image, in bytes. It determines how
	// much memory the decompression needs.
	Window = 4 << 20
)

// ErrDamaged is returned if the content of a bundle does not match its statement, or the bundle is
// truncated. A repetition with the same bytes fails again.
var ErrDamaged = errors.New("bundle: it is damaged or truncated")

// Reader reads a bundle sequentially.
type Reader struct {
	Statement Statement
	// Envelope is the DSSE envelope with the statement and its signatures.
	Envelope []byte
	tar      *tar.Reader
	member   string // name of the current file of the archive
	size     int64  // its size in bytes
}

// Open reads a bundle up to the statement and verifies the statement. It returns an error if the
// bundle is malformed, or if too few trusted keys have signed the statement.
func Open(from io.Reader, trust Trust) (*Reader, error) {
	r := &Reader{tar: tar.NewReader(from)}
	for _, part := range []string{"oci-layout", "index.json", "OCI manifest"} {
		if err := r.next(part); err != nil {
			return nil, err
		}
		if r.size > maxStatement { // With a large file here, a sender could delay the reader.
			return nil, fmt.Errorf("bundle: it is not an upgrade bundle (%d bytes where its %s should be)", r.size, part)
		}
	}
	if err := r.next("statement"); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(r.tar, maxStatement+1))
	if err != nil {
		return nil, readError("statement", err)
	}
	if len(text) > maxStatement {
		return nil, fmt.Errorf("bundle: its statement is larger than %d KiB", maxStatement>>10)
	}
	r.Envelope = text
	r.Statement, err = Verify(text, trust)
	return r, err
}

// ReadAll reads and verifies every part of a bundle, without storing it, and returns its statement.
func ReadAll(from io.Reader, trust Trust) (Statement, error) {
	r, err := Open(from, trust)
	if err != nil {
		return Statement{}, err
	}
	if err := r.Root(io.Discard); err != nil {
		return Statement{}, err
	}
	if _, err := r.UKI(); err != nil {
		return Statement{}, err
	}
	if _, err := r.SBOM(); err != nil {
		return Statement{}, err
	}
	return r.Statement, nil
}

// Verify returns a statement that enough trusted keys have signed. Several signatures of one key
// count once.
func Verify(text []byte, trust Trust) (Statement, error) {
	payload, err := VerifyPayload(text, TypePayload, trust)
	if err != nil {
		return Statement{}, fmt.Errorf("bundle: %w", err)
	}
	return parse(payload)
}

// VerifyPayload returns the payload of a DSSE envelope that enough trusted keys have signed.
// Several signatures of one key count once. Package extension uses VerifyPayload for the statements
// of extensions.
func VerifyPayload(text []byte, payloadType string, trust Trust) ([]byte, error) {
	envelope, err := parseEnvelope(text)
	if err != nil {
		return nil, err
	}
	if envelope.PayloadType != payloadType {
		return nil, fmt.Errorf("its payload type is %q, not %s", envelope.PayloadType, payloadType)
	}
	var keys []dsse.Verifier
	for _, public := range trust.Keys {
		keys = append(keys, dsseKey{public: public})
	}
	verifier, err := dsse.NewMultiEnvelopeVerifier(trust.Threshold, keys...)
	if err != nil {
		return nil, err
	}
	by, payload, err := verifier.VerifyAndDecode(context.Background(), &envelope)
	switch {
	case err != nil && len(by) > 0:
		return nil, fmt.Errorf("too few signatures: %d trusted keys have signed it, %d are required; `imager sign` adds a signature", len(by), trust.Threshold)
	case err != nil:
		return nil, fmt.Errorf("no trusted key has signed it: %w", err)
	}
	return payload, nil
}

// ParseUnverified returns the statement of an envelope without verifying the signatures. It is for
// the statement of an installed version, because the installation has already verified the
// signatures.
func ParseUnverified(text []byte) (Statement, error) { return unverified(text) }

// unverified parses the statement of an envelope without verifying the signatures.
func unverified(text []byte) (Statement, error) {
	envelope, err := parseEnvelope(text)
	if err != nil {
		return Statement{}, fmt.Errorf("bundle: %w", err)
	}
	payload, err := envelope.DecodeB64Payload()
	if err != nil {
		return Statement{}, fmt.Errorf("bundle: its statement is not a DSSE envelope: %w", err)
	}
	return parse(payload)
}

func parseEnvelope(text []byte) (envelope dsse.Envelope, err error) {
	if err := json.Unmarshal(text, &envelope); err != nil {
		return envelope, fmt.Errorf("its statement is not a DSSE envelope: %w", err)
	}
	return envelope, nil
}

func parse(payload []byte) (Statement, error) {
	var s Statement
	strict := json.NewDecoder(bytes.NewReader(payload))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&s); err != nil {
		return Statement{}, fmt.Errorf("bundle: cannot parse its statement; it may require an upgrade to an intermediate version first: %w", err)
	}
	if err := s.check(); err != nil {
		return Statement{}, fmt.Errorf("bundle: its statement is invalid: %w", err)
	}
	return s, nil
}

// next advances to the next file of the archive. part is its name in error texts.
func (r *Reader) next(part string) error {
	header, err := r.tar.Next()
	if err != nil {
		return readError(part, err)
	}
	r.member, r.size = header.Name, header.Size
	return nil
}

func readError(part string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it ends within its %s", ErrDamaged, part)
	}
	if errors.Is(err, tar.ErrHeader) {
		return fmt.Errorf("bundle: it is not an upgrade bundle (no tar archive at its %s)", part)
	}
	return fmt.Errorf("bundle: cannot read its %s: %w", part, err)
}

// SkipRoot skips the root image. If the argument of Open can seek, the root image is not even read.
// The caller can call UKI next, as after Root.
func (r *Reader) SkipRoot() error { return r.next("root image") }

// Root writes the uncompressed root image and verifies it. It must be called before UKI. After an
// error, the caller must not use the written data.
func (r *Reader) Root(to io.Writer) error {
	if err := r.next("root image"); err != nil {
		return err
	}
	if r.member == r.Statement.RootImage.blob() {
		return copyRoot(to, newChecked(r.tar, r.Statement.RootImage))
	}
	packed := newChecked(r.tar, r.Statement.Packed)
	unpack, err := zstd.NewReader(packed, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(Window))
	if err != nil {
		return fmt.Errorf("bundle: %w", err)
	}
	defer unpack.Close()
	if err := copyRoot(to, newChecked(unpack, r.Statement.RootImage)); err != nil {
		return err
	}
	return packed.done("packed root image")
}

func copyRoot(to io.Writer, image *checked) error {
	device := &errorKeeper{Writer: to}
	if _, err := io.Copy(device, image); device.err != nil || errors.Is(err, ErrDamaged) {
		return err
	} else if err != nil {
		return fmt.Errorf("%w: its root image: %w", ErrDamaged, err)
	}
	return image.done("root image")
}

// errorKeeper is a writer that stores the error of its last write, so that copyRoot can distinguish
// a write error from a damaged bundle.
type errorKeeper struct {
	io.Writer
	err error
}

func (t *errorKeeper) Write(p []byte) (int, error) {
	n, err := t.Writer.Write(p)
	t.err = err
	return n, err
}

// UKI returns the unified kernel image.
func (r *Reader) UKI() ([]byte, error) {
	if err := r.next("unified kernel image"); err != nil {
		return nil, err
	}
	part := newChecked(r.tar, r.Statement.UKI)
	content := make([]byte, r.Statement.UKI.Size)
	if _, err := io.ReadFull(part, content); err != nil {
		return nil, readError("unified kernel image", err)
	}
	return content, part.done("unified kernel image")
}

// SBOM returns the bill of materials. It returns nil if the bundle was made by Copy, because such a
// bundle has no bill of materials. It must be called after UKI.
func (r *Reader) SBOM() ([]byte, error) {
	if err := r.next(sbomPart); err != nil {
		return nil, err
	}
	if r.member == blob(ocispec.DescriptorEmptyJSON.Digest) && r.member != r.Statement.SBOM.blob() {
		return nil, nil
	}
	if r.Statement.SBOM.Size > MaxSBOM {
		return nil, fmt.Errorf("bundle: its bill of materials has %d MiB, and at most %d are read", r.Statement.SBOM.Size>>20, MaxSBOM>>20)
	}
	part := newChecked(r.tar, r.Statement.SBOM)
	content, err := io.ReadAll(part)
	if err != nil {
		return nil, readError(sbomPart, err)
	}
	return content, part.done(sbomPart)
}

// checked reads a part and compares it with its description in the statement. Read fails if the
// part has too many bytes, and done if its size or digest is wrong.
type checked struct {
	from io.Reader
	want Part
	sum  hash.Hash
	size int64
}

func newChecked(from io.Reader, want Part) *checked {
	return &checked{from: io.LimitReader(from, want.Size+1), want: want, sum: sha256.New()}
}

func (c *checked) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.size += int64(n)
	c.sum.Write(p[:n])
	if c.size > c.want.Size {
		return n, fmt.Errorf("%w: a part is larger than the %d bytes in the statement", ErrDamaged, c.want.Size)
	}
	return n, err
}

// done verifies the size and the digest after the last read.
func (c *checked) done(part string) error {
	if c.size < c.want.Size {
		// The decompressor may have stopped before the end of the part. Read the rest, because the
		// digest covers the whole part.
		if _, err := io.Copy(io.Discard, c); err != nil {
			return readError(part, err)
		}
	}
	if got := hex.EncodeToString(c.sum.Sum(nil)); c.size != c.want.Size || got != c.want.SHA256 {
		return fmt.Errorf("%w: its %s has %d bytes with digest %s; the statement has %d with %s", ErrDamaged, part, c.size, got, c.want.Size, c.want.SHA256)
	}
	return nil
}
