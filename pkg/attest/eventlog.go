package attest

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// MaxLog is the maximum size of an event log in bytes. Real logs have 10 to 100 KiB.
const MaxLog = 1 << 20

// Digest is a SHA-256 digest.
type Digest = [sha256.Size]byte

// Event is an event of the log. A PCR proves only the digests of its events: a dishonest machine
// can change their types and data in its log.
type Event struct {
	PCR    uint32
	Type   uint32
	Digest Digest
	Data   []byte
}

// NoAction is the type of an event that changes no PCR (TCG PC Client Platform Firmware Profile
// 1.06, 10.4.1: EV_NO_ACTION).
const NoAction = 3

// Fields of the log (TCG PC Client Platform Firmware Profile 1.06, section 10.2).
const (
	algSHA256      = 0x000b // TPM_ALG_SHA256
	oldDigest      = 20     // bytes of the digest in the first event, SHA-1
	logSignature   = "Spec ID Event03\x00"
	signatureRest  = 8  // bytes: class of the platform, version of the specification, size of UINTN
	maxAlgorithms  = 16 // real logs have at most 5
	localityPrefix = "StartupLocality\x00"
)

var errTruncated = errors.New("is truncated")

// reader reads little-endian fields. A read beyond the end returns zero and sets the field bad.
type reader struct {
	rest []byte
	bad  bool
}

func (r *reader) bytes(n uint32) []byte {
	if uint64(n) > uint64(len(r.rest)) {
		r.bad, r.rest = true, nil
		return nil
	}
	out := r.rest[:n]
	r.rest = r.rest[n:]
	return out
}

func (r *reader) u16() uint16 {
	if b := r.bytes(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

func (r *reader) u32() uint32 {
	if b := r.bytes(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

// ParseLog parses the log of the firmware in the crypto-agile form.
func ParseLog(log []byte) ([]Event, error) {
	events, err := parseLog(log)
	if err != nil {
		return nil, fmt.Errorf("event log: %w", err)
	}
	return events, nil
}

func parseLog(log []byte) (events []Event, err error) {
	if len(log) > MaxLog {
		return nil, fmt.Errorf("has more than %d KiB", MaxLog>>10)
	}
	r := &reader{rest: log}
	sizes, err := parseHeader(r)
	if err != nil {
		return nil, err
	}
	for len(r.rest) > 0 {
		e := Event{PCR: r.u32(), Type: r.u32()}
		known, err := parseDigests(r, sizes, &e.Digest)
		if err != nil {
			return nil, fmt.Errorf("event %d: %w", len(events)+1, err)
		}
		e.Data = r.bytes(r.u32())
		if r.bad {
			return nil, fmt.Errorf("event %d: %w", len(events)+1, errTruncated)
		}
		if !known && e.Type != NoAction {
			return nil, fmt.Errorf("event %d: has no SHA-256 digest", len(events)+1)
		}
		events = append(events, e)
	}
	return events, nil
}

// parseHeader parses the first event, in the form of TPM 1.2, and returns the size of the digests
// for each hash algorithm.
func parseHeader(r *reader) (map[uint16]uint32, error) {
	r.bytes(4 + 4 + oldDigest)
	head := &reader{rest: r.bytes(r.u32())}
	if r.bad {
		return nil, errTruncated
	}
	if string(head.bytes(uint32(len(logSignature)))) != logSignature {
		return nil, errors.New("is not in the form of TPM 2.0; the firmware must use the crypto-agile form")
	}
	head.bytes(signatureRest)
	count := head.u32()
	if count > maxAlgorithms {
		return nil, fmt.Errorf("names %d algorithms, and at most %d are possible", count, maxAlgorithms)
	}
	sizes := map[uint16]uint32{}
	for range count {
		algorithm := head.u16()
		sizes[algorithm] = uint32(head.u16())
	}
	if head.bad {
		return nil, errTruncated
	}
	if sizes[algSHA256] != sha256.Size {
		return nil, errors.New("has no SHA-256 digests; enable the SHA-256 bank of the TPM in the setup of the firmware")
	}
	return sizes, nil
}

// parseDigests reads the digests of an event, one for each hash algorithm. It stores the SHA-256
// digest in *to. The result known is true if the event has a SHA-256 digest.
func parseDigests(r *reader, sizes map[uint16]uint32, to *Digest) (known bool, err error) {
	count := r.u32()
	if count > maxAlgorithms {
		return false, fmt.Errorf("has %d digests, and at most %d are possible", count, maxAlgorithms)
	}
	for range count {
		algorithm := r.u16()
		size, ok := sizes[algorithm]
		if !ok && !r.bad {
			return false, fmt.Errorf("has a digest of algorithm %#x, which the log does not announce", algorithm)
		}
		if value := r.bytes(size); algorithm == algSHA256 && value != nil {
			*to, known = Digest(value), true
		}
	}
	return known, nil
}

// PCRs is the number of the PCRs that a quote covers: 0 to 15.
const PCRs = 16

// Replay returns the values of the PCRs after the events.
func Replay(events []Event) (values [PCRs]Digest) {
	for _, e := range events {
		switch {
		case e.PCR >= PCRs:
		case e.Type != NoAction:
			values[e.PCR] = extend(values[e.PCR], e.Digest)
		case e.PCR == 0 && bytes.HasPrefix(e.Data, []byte(localityPrefix)) && len(e.Data) == len(localityPrefix)+1:
			// This event states the locality from which the TPM was started. The initial value of
			// PCR 0 contains this locality.
			values[0][sha256.Size-1] = e.Data[len(localityPrefix)]
		}
	}
	return values
}

// extend is the operation of the TPM that adds a digest to a PCR.
func extend(value, digest Digest) Digest {
	return sha256.Sum256(append(value[:], digest[:]...))
}

// extended returns the events that the PCR contains, in order.
func extended(events []Event, pcr uint32) (out []Event) {
	for _, e := range events {
		if e.PCR == pcr && e.Type != NoAction {
			out = append(out, e)
		}
	}
	return out
}
