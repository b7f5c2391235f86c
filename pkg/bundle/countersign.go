package bundle

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
)

// Countersign copies a bundle and adds the signature of one more key to its statement. It verifies
// the parts against the statement, but not the existing signatures: the holder of the key must know
// that the bundle is good. It rejects a bundle that the imager did not create, for example the
// bundle of a machine (type Copy), which has an uncompressed root image.
func Countersign(to io.Writer, from io.Reader, key Key) (Statement, error) {
	r := &Reader{tar: tar.NewReader(from)}
	header, err := r.tar.Next()
	if err != nil {
		return Statement{}, readError("oci-layout", err)
	}
	for _, part := range []string{"index.json", "OCI manifest", "statement"} {
		if err := r.next(part); err != nil {
			return Statement{}, err
		}
	}
	text, err := io.ReadAll(io.LimitReader(r.tar, maxStatement))
	if err != nil {
		return Statement{}, readError("statement", err)
	}
	envelope, err := AddSignature(text, TypePayload, key)
	if err != nil {
		return Statement{}, fmt.Errorf("bundle: %w", err)
	}
	s, err := unverified(envelope)
	if err != nil {
		return s, err
	}
	var parts []Layer
	for _, p := range []struct {
		kind, name string
		part       Part
	}{{TypeRoot, "packed root image", s.Packed}, {TypeUKI, "unified kernel image", s.UKI}, {TypeSBOM, sbomPart, s.SBOM}} {
		parts = append(parts, Layer{p.kind, p.part, &nextMember{of: r, name: p.name, want: p.part}})
	}
	return s, write(to, s.Version, header.ModTime, envelope, parts)
}

// AddSignature returns an envelope with one more signature. It fails if the payload of the envelope
// has another type, or if the key has signed the envelope already. It does not verify the existing
// signatures.
func AddSignature(text []byte, payloadType string, key Key) ([]byte, error) {
	envelope, err := parseEnvelope(text)
	if err != nil {
		return nil, err
	}
	if envelope.PayloadType != payloadType {
		return nil, fmt.Errorf("its payload type is %q, not %s", envelope.PayloadType, payloadType)
	}
	payload, err := envelope.DecodeB64Payload()
	if err != nil {
		return nil, fmt.Errorf("its statement is not a DSSE envelope: %w", err)
	}
	signer, err := dsse.NewEnvelopeSigner(key.dsse())
	if err != nil {
		return nil, err
	}
	added, err := signer.SignPayload(context.Background(), payloadType, payload)
	if err != nil {
		return nil, fmt.Errorf("cannot sign: %w", err)
	}
	for _, s := range envelope.Signatures {
		if s.KeyID == added.Signatures[0].KeyID {
			return nil, errors.New("it has a signature of this key already")
		}
	}
	envelope.Signatures = append(envelope.Signatures, added.Signatures...)
	return json.Marshal(envelope)
}

// nextMember reads and verifies the next member of a bundle. The first Read advances the Reader to
// the member.
type nextMember struct {
	of   *Reader
	name string
	want Part
	from *checked
}

func (m *nextMember) Read(p []byte) (int, error) {
	if m.from == nil {
		if err := m.of.next(m.name); err != nil {
			return 0, err
		}
		if m.of.member != m.want.blob() {
			return 0, fmt.Errorf("bundle: its %s is not at the expected position; only a bundle of the imager can be signed", m.name)
		}
		m.from = newChecked(m.of.tar, m.want)
	}
	n, err := m.from.Read(p)
	if errors.Is(err, io.EOF) {
		if wrong := m.from.done(m.name); wrong != nil {
			return n, wrong
		}
	}
	return n, err
}
