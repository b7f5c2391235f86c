package diskkey

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/google/uuid"

	"github.com/orlop-os/orlop/pkg/sanitize"
)

// Header is what the header of an encrypted partition says. An attacker with the disk can
// forge it; only a key that opens the partition is a proof.
type Header struct {
	Label string
	UUID  uuid.UUID
	Slots []int // key slots in use, ascending
	// Metadata are the keys in encrypted form; nil if the header has none.
	Metadata *Metadata
}

// Metadata are the keys of a partition in encrypted form.
type Metadata struct {
	Version int `json:"version"` // metadataVersion
	// Slot is the number of the key slot of the unlock key. Sealed is the unlock key.
	Slot   int    `json:"slot"`
	Sealed Sealed `json:"sealed"`
	// Recovery is the key of slot RecoverySlot.
	Recovery Recovery `json:"recovery"`
}

const (
	metadataVersion = 1
	// RecoverySlot is the number of the key slot of the recovery key.
	RecoverySlot = 1
	// tokenType is the type of the token with the metadata; tokenID is its number.
	tokenType = "orlop"
	tokenID   = 0
)

// spareSlot returns the key slot for the next unlock key, while the present one stays valid.
func (m Metadata) spareSlot() int {
	if m.Slot == 0 {
		return 2
	}
	return 0
}

// token is a token in the header, as cryptsetup imports it. cryptsetup does not interpret Metadata,
// so a later version can add fields, which this version ignores.
type token struct {
	Type     string          `json:"type"`
	Slots    []string        `json:"keyslots"`
	Metadata json.RawMessage `json:"metadata"`
}

// marshalToken returns the token with the metadata.
func marshalToken(m Metadata) ([]byte, error) {
	m.Version = metadataVersion
	text, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	return json.Marshal(token{tokenType, []string{strconv.Itoa(m.Slot), strconv.Itoa(RecoverySlot)}, text})
}

// HeaderSize is the size of the header with its key slots, in bytes. The encrypted data follow.
const HeaderSize = 16 << 20

// The fields of the binary header (LUKS2 On-Disk Format Specification 1.1.4, section 2.1).
const (
	binarySize  = 4096
	atSize      = 8
	atSequence  = 16
	atLabel     = 24
	atAlgorithm = 72
	atUUID      = 168
	atOffset    = 256
	atChecksum  = 448
	checksumEnd = 512
	maxLabel    = 48
	copySize    = 64 << 10 // of each of the two copies, in bytes
)

// The beginnings of the two copies. The version follows.
var (
	firstMagic  = []byte("LUKS\xba\xbe")
	secondMagic = []byte("SKUL\xba\xbe")
	version     = []byte{0, 2}
	algorithm   = append([]byte("sha256"), make([]byte, 26)...)
)

// ErrHeader means that a header is not one that the machine has made. cryptsetup is not started
// for it, because it would accept other ciphers and layouts.
var ErrHeader = errors.New("its LUKS2 header is damaged, or was not made by this machine")

// otherOffsets are the other offsets at which cryptsetup looks for the second copy if it does not
// accept the first (section 2.2 of the specification).
var otherOffsets = []int64{16 << 10, 32 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20}

// ReadHeader reads the header of an encrypted partition. It takes the newer of the two copies with
// a valid checksum, because a power cut can damage one copy. Each copy must be a header that the
// machine makes, because cryptsetup may take either: only a missing magic and a wrong checksum
// count as damage. After an error that wraps ErrHeader, only the label is set, which the first copy
// may have without a valid checksum.
func ReadHeader(r io.ReaderAt) (Header, error) {
	h, err := readCopies(r)
	if err != nil {
		return Header{Label: rawLabel(r)}, fmt.Errorf("%w: %w", ErrHeader, err)
	}
	return h, nil
}

func readCopies(r io.ReaderAt) (newest Header, err error) {
	for _, at := range otherOffsets {
		if hasMagic(r, at, secondMagic) {
			return newest, fmt.Errorf("a copy at %d", at)
		}
	}
	found, sequence := false, uint64(0)
	for _, at := range []int64{0, copySize} {
		raw, err := readCopy(r, at)
		if err != nil {
			return newest, fmt.Errorf("the copy at %d: %w", at, err)
		}
		if raw == nil {
			continue
		}
		h, err := parseHeader(raw)
		if err != nil {
			return newest, err
		}
		if n := binary.BigEndian.Uint64(raw[atSequence:]); !found || n > sequence {
			newest, found, sequence = h, true, n
		}
	}
	if !found {
		return newest, errors.New("no copy is valid")
	}
	return newest, nil
}

// hasMagic reports whether a copy begins at an offset.
func hasMagic(r io.ReaderAt, at int64, magic []byte) bool {
	start := make([]byte, len(magic))
	_, err := r.ReadAt(start, at)
	return err == nil && bytes.Equal(start, magic)
}

// rawLabel returns the label in the first copy, also if the copy is not valid. cryptsetup writes
// the label before the checksum, so a power cut in the first format leaves NewLabel here.
func rawLabel(r io.ReaderAt) string {
	head := make([]byte, binarySize)
	if _, err := r.ReadAt(head, 0); err != nil || !bytes.HasPrefix(head, slices.Concat(firstMagic, version)) {
		return ""
	}
	return sanitize.ASCII(text(head[atLabel:atLabel+maxLabel]), maxLabel)
}

// readCopy reads the copy of the header at an offset. It returns nil if there is no copy, or if the
// checksum is wrong. A copy with another version, another checksum algorithm, another size or
// another offset is an error: cryptsetup could accept it.
func readCopy(r io.ReaderAt, at int64) ([]byte, error) {
	magic := secondMagic
	if at == 0 {
		magic = firstMagic
	}
	if !hasMagic(r, at, magic) {
		return nil, nil
	}
	raw := make([]byte, copySize)
	if _, err := r.ReadAt(raw, at); err != nil {
		return nil, fmt.Errorf("it is truncated: %w", err)
	}
	switch {
	case !bytes.Equal(raw[len(magic):atSize], version):
		return nil, errors.New("it has another version of LUKS")
	case binary.BigEndian.Uint64(raw[atSize:]) != copySize || binary.BigEndian.Uint64(raw[atOffset:]) != uint64(at):
		return nil, errors.New("it has another size or position")
	case !bytes.Equal(raw[atAlgorithm:atAlgorithm+len(algorithm)], algorithm):
		return nil, errors.New("it has another checksum algorithm")
	}
	want := bytes.Clone(raw[atChecksum:checksumEnd])
	clear(raw[atChecksum:checksumEnd])
	if sum := sha256.Sum256(raw); !bytes.Equal(sum[:], want[:sha256.Size]) {
		return nil, nil
	}
	return raw, nil
}

// text returns a field of fixed length without its padding.
func text(field []byte) string {
	before, _, _ := bytes.Cut(field, []byte{0})
	return string(before)
}

// parseHeader parses a copy of the header with a valid checksum.
func parseHeader(raw []byte) (h Header, err error) {
	h.Label = sanitize.ASCII(text(raw[atLabel:atLabel+maxLabel]), maxLabel)
	if h.UUID, err = uuid.Parse(text(raw[atUUID : atUUID+40])); err != nil {
		return h, fmt.Errorf("its UUID is invalid: %w", err)
	}
	metadata := text(raw[binarySize:])
	if len(bytes.Trim(raw[binarySize+len(metadata):], "\x00")) > 0 {
		// cryptsetup does not accept such a copy, and would take another one.
		return h, errors.New("its metadata have text after the end")
	}
	a, err := parseArea([]byte(metadata))
	if err != nil {
		return h, err
	}
	if h.Slots, err = a.check(); err != nil {
		return h, err
	}
	if t, known := a.Tokens[strconv.Itoa(tokenID)]; known {
		h.Metadata, err = t.metadata()
	}
	return h, err
}

// metadata returns the metadata in a token, with sanitized public keys.
func (t token) metadata() (*Metadata, error) {
	m := new(Metadata)
	if err := json.Unmarshal(t.Metadata, m); err != nil {
		return nil, fmt.Errorf("cannot parse its keys: %w", err)
	}
	if m.Version != metadataVersion {
		return nil, fmt.Errorf("its metadata have version %d, and this version of the system reads version %d", m.Version, metadataVersion)
	}
	if m.Slot != 0 && m.Slot != 2 {
		return nil, fmt.Errorf("slot %d cannot be that of the unlock key", m.Slot)
	}
	if len(m.Recovery.Recipients) > MaxRecipients || len(m.Recovery.Ciphertext) > maxCiphertext {
		return nil, errors.New("its recovery key has too many recipients, or is too large")
	}
	for i, r := range m.Recovery.Recipients {
		m.Recovery.Recipients[i] = sanitize.ASCII(r, maxRecipient)
	}
	return m, nil
}

// maxRecipient is the maximum length of a public key in characters. A key that is secure against
// quantum computers has almost 2000.
const maxRecipient = 4 << 10
