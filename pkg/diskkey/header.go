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
	"strings"

	"github.com/google/uuid"
)

// Header is what the header of an encrypted partition says. Each person who can write to the disk
// can forge it; only a key that opens the partition proves anything.
type Header struct {
	Label string
	UUID  uuid.UUID
	// Offset is the position of the encrypted data in the partition, in bytes.
	Offset uint64
	Slots  []int // key slots in use, ascending
	// Encrypting is true while cryptsetup encrypts the former content in place.
	Encrypting bool
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

// token is a token in the header, as cryptsetup imports it.
type token struct {
	Type     string    `json:"type"`
	Slots    []string  `json:"keyslots"`
	Metadata *Metadata `json:"metadata"`
}

// marshalToken returns the token with the metadata.
func marshalToken(m Metadata) ([]byte, error) {
	m.Version = metadataVersion
	return json.Marshal(token{tokenType, []string{strconv.Itoa(m.Slot), strconv.Itoa(RecoverySlot)}, &m})
}

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
	maxHeader   = 4 << 20 // of each of the two copies, in bytes
)

var (
	firstMagic  = []byte("LUKS\xba\xbe\x00\x02")
	secondMagic = []byte("SKUL\xba\xbe\x00\x02")
)

// ReadHeader reads the header of an encrypted partition. It takes the newer of the two copies with
// a valid checksum, because a power cut can damage one copy.
func ReadHeader(r io.ReaderAt) (Header, error) {
	newest, sequence := []byte(nil), uint64(0)
	for at := int64(0); at <= maxHeader; at = max(2*at, 16<<10) {
		raw, number, valid := readCopy(r, at)
		if valid && (newest == nil || number > sequence) {
			newest, sequence = raw, number
		}
	}
	if newest == nil {
		return Header{}, errors.New("LUKS2 header: both copies are damaged")
	}
	return parseHeader(newest)
}

// readCopy reads the copy of the header at an offset. valid is false if there is none, or if its
// checksum is wrong.
func readCopy(r io.ReaderAt, at int64) (raw []byte, sequence uint64, valid bool) {
	head := make([]byte, binarySize)
	if _, err := r.ReadAt(head, at); err != nil {
		return nil, 0, false
	}
	magic := secondMagic
	if at == 0 {
		magic = firstMagic
	}
	size := binary.BigEndian.Uint64(head[atSize:])
	if !bytes.HasPrefix(head, magic) || binary.BigEndian.Uint64(head[atOffset:]) != uint64(at) || size <= binarySize || size > maxHeader {
		return nil, 0, false
	}
	raw = make([]byte, size)
	if _, err := r.ReadAt(raw, at); err != nil || text(raw[atAlgorithm:atAlgorithm+32]) != "sha256" {
		return nil, 0, false
	}
	want := bytes.Clone(raw[atChecksum : atChecksum+sha256.Size])
	clear(raw[atChecksum:checksumEnd])
	sum := sha256.Sum256(raw)
	return raw, binary.BigEndian.Uint64(raw[atSequence:]), bytes.Equal(sum[:], want)
}

// text returns a field of fixed length without its padding.
func text(field []byte) string {
	before, _, _ := bytes.Cut(field, []byte{0})
	return string(before)
}

// area is the part of the JSON area that the package uses.
type area struct {
	Keyslots map[string]json.RawMessage `json:"keyslots"`
	Tokens   map[string]json.RawMessage `json:"tokens"`
	Segments map[string]struct {
		Type   string `json:"type"`
		Offset string `json:"offset"`
	} `json:"segments"`
	Config struct {
		Requirements struct {
			Mandatory []string `json:"mandatory"`
		} `json:"requirements"`
	} `json:"config"`
}

// parseHeader parses a copy of the header with a valid checksum.
func parseHeader(raw []byte) (h Header, err error) {
	h.Label = text(raw[atLabel : atLabel+48])
	if h.UUID, err = uuid.Parse(text(raw[atUUID : atUUID+40])); err != nil {
		return h, fmt.Errorf("LUKS2 header: its UUID is invalid: %w", err)
	}
	var a area
	if err := json.Unmarshal([]byte(text(raw[binarySize:])), &a); err != nil {
		return h, fmt.Errorf("LUKS2 header: cannot parse its metadata: %w", err)
	}
	for number := range a.Keyslots {
		n, err := strconv.Atoi(number)
		if err != nil {
			return h, errors.New("LUKS2 header: the number of a key slot is invalid")
		}
		h.Slots = append(h.Slots, n)
	}
	slices.Sort(h.Slots)
	for _, s := range a.Segments {
		if offset, err := strconv.ParseUint(s.Offset, 10, 62); err == nil && s.Type == "crypt" {
			h.Offset = max(h.Offset, offset)
		}
	}
	h.Encrypting = slices.ContainsFunc(a.Config.Requirements.Mandatory, func(r string) bool { return strings.HasPrefix(r, "online-reencrypt") })
	h.Metadata, err = parseToken(a.Tokens[strconv.Itoa(tokenID)])
	return h, err
}

// parseToken returns the metadata in a token; nil if it is not a token of this package.
func parseToken(raw json.RawMessage) (*Metadata, error) {
	var t token
	if raw == nil || json.Unmarshal(raw, &t) != nil || t.Type != tokenType || t.Metadata == nil {
		return nil, nil
	}
	if t.Metadata.Version != metadataVersion {
		return nil, fmt.Errorf("LUKS2 header: its metadata have version %d, and this version of the system reads version %d", t.Metadata.Version, metadataVersion)
	}
	return t.Metadata, nil
}
