package diskkey

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/google/uuid"

	"github.com/orlop-os/orlop/pkg/sanitize"
)

// Header is what the header of an encrypted partition says. Each person who can write to the disk
// can forge it; only a key that opens the partition proves anything.
type Header struct {
	Label string
	UUID  uuid.UUID
	// Offset is the position of the encrypted data in the partition, in bytes.
	Offset uint64
	Slots  []int // key slots in use, ascending
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

var (
	firstMagic  = []byte("LUKS\xba\xbe\x00\x02")
	secondMagic = []byte("SKUL\xba\xbe\x00\x02")
)

// ErrHeader means that a header is not one that the machine has made. cryptsetup is not started
// for it, because it would accept other ciphers and layouts.
var ErrHeader = errors.New("its LUKS2 header is damaged, or was not made by this machine")

// otherOffsets are the other offsets at which cryptsetup looks for the second copy if the first is
// damaged (section 2.2 of the specification).
var otherOffsets = []int64{16 << 10, 32 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20}

// ReadHeader reads the header of an encrypted partition. It takes the newer of the two copies with
// a valid checksum, because a power cut can damage one copy. Each valid copy must be a header that
// the machine makes, because cryptsetup may take either. After an error that wraps ErrHeader, only
// the label is set, which the first copy may have without a valid checksum.
func ReadHeader(r io.ReaderAt) (Header, error) {
	var raw [2][]byte
	var sequence [2]uint64
	for i, at := range []int64{0, copySize} {
		raw[i], sequence[i] = readCopy(r, at)
	}
	label := rawLabel(r)
	if raw[0] == nil {
		for _, at := range otherOffsets {
			if magic := make([]byte, len(secondMagic)); readsMagic(r, at, magic) {
				return Header{Label: label}, fmt.Errorf("%w: a copy at %d", ErrHeader, at)
			}
		}
	}
	var newest Header
	found := false
	for i := range raw {
		if raw[i] == nil {
			continue
		}
		h, err := parseHeader(raw[i])
		if err != nil {
			return Header{Label: label}, fmt.Errorf("%w: %w", ErrHeader, err)
		}
		if !found || sequence[1] > sequence[0] {
			newest, found = h, true
		}
	}
	if !found {
		return Header{Label: label}, fmt.Errorf("%w: no copy is valid", ErrHeader)
	}
	return newest, nil
}

// readsMagic reports whether a second copy begins at an offset.
func readsMagic(r io.ReaderAt, at int64, magic []byte) bool {
	_, err := r.ReadAt(magic, at)
	return err == nil && bytes.Equal(magic, secondMagic)
}

// rawLabel returns the label in the first copy, also if the copy is not valid. cryptsetup writes
// the label before the checksum, so a power cut in the first format leaves NewLabel here.
func rawLabel(r io.ReaderAt) string {
	head := make([]byte, binarySize)
	if _, err := r.ReadAt(head, 0); err != nil || !bytes.HasPrefix(head, firstMagic) {
		return ""
	}
	return sanitize.ASCII(text(head[atLabel:atLabel+maxLabel]), maxLabel)
}

// readCopy reads the copy of the header at an offset. It returns nil if there is none, if it does
// not have the layout that formatCommand makes, or if its checksum is wrong.
func readCopy(r io.ReaderAt, at int64) (raw []byte, sequence uint64) {
	raw = make([]byte, copySize)
	if _, err := r.ReadAt(raw, at); err != nil {
		return nil, 0
	}
	magic := secondMagic
	if at == 0 {
		magic = firstMagic
	}
	if !bytes.HasPrefix(raw, magic) || binary.BigEndian.Uint64(raw[atOffset:]) != uint64(at) || binary.BigEndian.Uint64(raw[atSize:]) != copySize {
		return nil, 0
	}
	if text(raw[atAlgorithm:atAlgorithm+32]) != "sha256" {
		return nil, 0
	}
	want := bytes.Clone(raw[atChecksum : atChecksum+sha256.Size])
	clear(raw[atChecksum:checksumEnd])
	if sum := sha256.Sum256(raw); !bytes.Equal(sum[:], want) {
		return nil, 0
	}
	return raw, binary.BigEndian.Uint64(raw[atSequence:])
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
	a, err := parseArea([]byte(text(raw[binarySize:])))
	if err != nil {
		return h, err
	}
	if h.Slots, err = a.check(); err != nil {
		return h, err
	}
	h.Offset = dataOffset
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
