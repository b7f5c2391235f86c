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
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
)

const (
	// maxStatement bounds what is kept of a bundle before anything of it is believed.
	maxStatement = 64 << 10
	// Head is how much of a bundle's beginning is enough for Open, in bytes: the statement and the
	// small members before it.
	Head = 2 * maxStatement
	// Window is the most that a packed root image refers back, in bytes: the memory that unpacking
	// takes.
	Window = 4 << 20
)

// ErrDamaged is why a bundle is not what its statement says. Reading it again gives nothing else.
var ErrDamaged = errors.New("bundle: it is damaged or cut off")

// Reader reads a bundle from its beginning to its end.
type Reader struct {
	Statement Statement
	// Envelope is the statement as it was signed.
	Envelope []byte
	tar      *tar.Reader
	member   string // the name of the present member
	size     int64  // its bytes
}

// Open reads as far as the statement and checks it. The error says what is wrong with the file.
func Open(from io.Reader, trust Trust) (*Reader, error) {
	r := &Reader{tar: tar.NewReader(from)}
	for _, part := range []string{"oci-layout", "index.json", "OCI manifest"} {
		if err := r.next(part); err != nil {
			return nil, err
		}
		if r.size > maxStatement { // reading over it would take as long as who sends it likes
			return nil, fmt.Errorf("bundle: it is not an upgrade bundle (%d bytes where its %s should be)", r.size, part)
		}
	}
	if err := r.next("statement"); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(r.tar, maxStatement+1))
	if err != nil {
		return nil, cut("statement", err)
	}
	if len(text) > maxStatement {
		return nil, fmt.Errorf("bundle: its statement is larger than %d KiB", maxStatement>>10)
	}
	r.Envelope = text
	r.Statement, err = Verify(text, trust)
	return r, err
}

// Verify returns a statement that enough of the trusted keys have signed. A key counts once,
// however often it has.
func Verify(text []byte, trust Trust) (Statement, error) {
	envelope, err := opened(text)
	if err != nil {
		return Statement{}, err
	}
	if envelope.PayloadType != TypePayload {
		return Statement{}, fmt.Errorf("bundle: it states %q, not %s", envelope.PayloadType, TypePayload)
	}
	var keys []dsse.Verifier
	for _, public := range trust.Keys {
		keys = append(keys, side{public: public})
	}
	verifier, err := dsse.NewMultiEnvelopeVerifier(trust.Threshold, keys...)
	if err != nil {
		return Statement{}, fmt.Errorf("bundle: %w", err)
	}
	by, payload, err := verifier.VerifyAndDecode(context.Background(), &envelope)
	switch {
	case err != nil && len(by) > 0:
		return Statement{}, fmt.Errorf("bundle: too few signatures: %d keys that this system trusts have signed it, and %d have to; `imager sign` adds one", len(by), trust.Threshold)
	case err != nil:
		return Statement{}, fmt.Errorf("bundle: no key that this system trusts has signed it: %w", err)
	}
	return parse(payload)
}

// ParseUnverified is the statement of an envelope whoever signed it: of a version that lies on a disk, and
// whose signatures were looked at when it came.
func ParseUnverified(text []byte) (Statement, error) { return unproved(text) }

// unproved is the statement of an envelope whoever signed it.
func unproved(text []byte) (Statement, error) {
	envelope, err := opened(text)
	if err != nil {
		return Statement{}, err
	}
	payload, err := envelope.DecodeB64Payload()
	if err != nil {
		return Statement{}, fmt.Errorf("bundle: its statement is no DSSE envelope: %w", err)
	}
	return parse(payload)
}

func opened(text []byte) (envelope dsse.Envelope, err error) {
	if err := json.Unmarshal(text, &envelope); err != nil {
		return envelope, fmt.Errorf("bundle: its statement is no DSSE envelope: %w", err)
	}
	return envelope, nil
}

func parse(payload []byte) (Statement, error) {
	var s Statement
	strict := json.NewDecoder(bytes.NewReader(payload))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&s); err != nil {
		return Statement{}, fmt.Errorf("bundle: its statement cannot be read; it may need a newer system than this one first: %w", err)
	}
	if err := s.check(); err != nil {
		return Statement{}, fmt.Errorf("bundle: its statement makes no sense: %w", err)
	}
	return s, nil
}

// next goes to the next member.
func (r *Reader) next(part string) error {
	header, err := r.tar.Next()
	if err != nil {
		return cut(part, err)
	}
	r.member, r.size = header.Name, header.Size
	return nil
}

func cut(part string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it ends before its %s does", ErrDamaged, part)
	}
	if errors.Is(err, tar.ErrHeader) {
		return fmt.Errorf("bundle: it is not an upgrade bundle (no tar archive at its %s)", part)
	}
	return fmt.Errorf("bundle: cannot read its %s: %w", part, err)
}

// Root writes the root image, unpacked, and checks it. It must be called before UKI. What has been
// written is worth nothing when it returns an error.
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
	device := &target{Writer: to}
	if _, err := io.Copy(device, image); device.err != nil || errors.Is(err, ErrDamaged) {
		return err
	} else if err != nil {
		return fmt.Errorf("%w: its root image: %w", ErrDamaged, err)
	}
	return image.done("root image")
}

// target is where a part is written to; it remembers that it did not take something.
type target struct {
	io.Writer
	err error
}

func (t *target) Write(p []byte) (int, error) {
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
		return nil, cut("unified kernel image", err)
	}
	return content, part.done("unified kernel image")
}

// checked reads exactly what a statement promises, or fails at its end.
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
		return n, fmt.Errorf("%w: a part is larger than the %d bytes that its statement promises", ErrDamaged, c.want.Size)
	}
	return n, err
}

// done tells whether everything came, and nothing else.
func (c *checked) done(part string) error {
	if c.size < c.want.Size {
		// What follows the compressed data in the member belongs to it too.
		if _, err := io.Copy(io.Discard, c); err != nil {
			return cut(part, err)
		}
	}
	if got := hex.EncodeToString(c.sum.Sum(nil)); c.size != c.want.Size || got != c.want.SHA256 {
		return fmt.Errorf("%w: its %s has %d bytes with digest %s, its statement promises %d with %s", ErrDamaged, part, c.size, got, c.want.Size, c.want.SHA256)
	}
	return nil
}
