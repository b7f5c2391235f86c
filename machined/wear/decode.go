package wear

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// pageSize is the size of each log page, in bytes.
const pageSize = 512

// Log is the content of a disk's log. A value that the disk does not report is nil.
type Log struct {
	UsedPercent    *int   `json:"usedPercent,omitempty"`    // of the rated life; can exceed 100
	SparePercent   *int   `json:"sparePercent,omitempty"`   // spare blocks that are left
	SpareThreshold *int   `json:"spareThreshold,omitempty"` // minimum for SparePercent
	Temperature    *int   `json:"temperature,omitempty"`    // °C
	PowerOnHours   uint64 `json:"powerOnHours"`
	// unrecovered data errors; for an ATA disk, also the sectors that are unreadable at present
	Errors     uint64    `json:"errors"`
	OutOfRange bool      `json:"outOfRange,omitempty"` // Temperature is outside the disk's limits
	Failures   []Failure `json:"failures,omitempty"`
}

// Failure is a condition that the disk reports and for which it must be replaced.
type Failure string

const (
	FailureSpare       Failure = "its spare blocks are below their threshold"
	FailureReliability Failure = "many errors have reduced its reliability"
	FailureReadOnly    Failure = "it has become read-only"
	FailureBackup      Failure = "its buffer would lose data in a power cut"
	FailureMemory      Failure = "its persistent memory has become unreliable"
	FailurePredicted   Failure = "it predicts its own failure"
)

// errNoLog means that the log has only zeros, as on some virtual disks.
var errNoLog = errors.New("the disk reports no log")

// nvmeWarnings are the bits of the field Critical Warning (NVM Express Base Specification 2.0,
// figure 207).
var nvmeWarnings = []struct {
	bit     byte
	failure Failure
}{
	{1 << 0, FailureSpare}, {1 << 2, FailureReliability}, {1 << 3, FailureReadOnly}, {1 << 4, FailureBackup}, {1 << 5, FailureMemory},
}

// nvmeTemperature is the bit of Critical Warning for a temperature out of range.
const nvmeTemperature = 1 << 1

// decodeNVMe decodes the log page SMART / Health Information of an NVMe disk (NVM Express Base
// Specification 2.0, section 5.16.1.3). It returns an error if the page is empty or has a wrong
// size.
func decodeNVMe(page []byte) (Log, error) {
	if len(page) != pageSize {
		return Log{}, fmt.Errorf("a page of %d bytes", len(page))
	}
	if blank(page) {
		return Log{}, errNoLog
	}
	l := Log{
		SparePercent: new(int(page[3])), SpareThreshold: new(int(page[4])), UsedPercent: new(int(page[5])),
		PowerOnHours: wide(page[128:144]), Errors: wide(page[160:176]), OutOfRange: page[0]&nvmeTemperature != 0,
	}
	if kelvin := binary.LittleEndian.Uint16(page[1:]); kelvin > 0 {
		l.Temperature = new(int(kelvin) - 273)
	}
	for _, w := range nvmeWarnings {
		if page[0]&w.bit != 0 {
			l.Failures = append(l.Failures, w.failure)
		}
	}
	return l, nil
}

// wide decodes a little-endian number of 16 bytes. A number that does not fit in 64 bits becomes
// math.MaxUint64.
func wide(b []byte) uint64 {
	if binary.LittleEndian.Uint64(b[8:]) != 0 {
		return math.MaxUint64
	}
	return binary.LittleEndian.Uint64(b)
}

// blank reports whether a page has zeros only.
func blank(page []byte) bool {
	for _, b := range page {
		if b != 0 {
			return false
		}
	}
	return true
}

// Numbers of ATA attributes that have the same meaning for all manufacturers.
const (
	ataHours         = 9
	ataUncorrectable = 187
	ataTemperature   = 194
	ataPending       = 197
	ataOffline       = 198
)

// The layout of the attributes: 30 entries of 12 bytes from offset 2. An entry has the number,
// flags, two normalized values, and at offset 5 the raw value of 6 bytes.
const (
	ataEntries   = 30
	ataEntrySize = 12
	ataFirst     = 2
	ataRaw       = 5
)

// decodeATA decodes the attributes of an ATA disk (ATA8-ACS, SMART READ DATA). It uses only the
// lower four bytes of a raw value, because the manufacturers disagree on the upper two. It returns
// an error if the page is empty or has a wrong size or checksum.
func decodeATA(page []byte) (Log, error) {
	if len(page) != pageSize {
		return Log{}, fmt.Errorf("a page of %d bytes", len(page))
	}
	if blank(page) {
		return Log{}, errNoLog
	}
	var sum byte
	for _, b := range page {
		sum += b
	}
	if sum != 0 {
		return Log{}, errors.New("the log has a wrong checksum")
	}
	var l Log
	for i := range ataEntries {
		entry := page[ataFirst+i*ataEntrySize:][:ataEntrySize]
		raw := uint64(binary.LittleEndian.Uint32(entry[ataRaw:]))
		switch entry[0] {
		case ataHours:
			l.PowerOnHours = raw
		case ataTemperature:
			l.Temperature = new(int(int8(entry[ataRaw])))
		case ataUncorrectable, ataPending, ataOffline:
			l.Errors += raw
		}
	}
	return l, nil
}

// usedByATA returns the Percentage Used Endurance Indicator in the log page Solid State Device
// Statistics of an ATA disk (ACS-4, section 9.5.10). It returns nil if the disk does not report it.
func usedByATA(page []byte) *int {
	const number, place = 7, 8              // number of the page, and offset of the statistic
	const supported, valid = 1 << 7, 1 << 6 // flags in the last byte of the statistic
	if len(page) != pageSize || page[2] != number || page[place+7]&(supported|valid) != supported|valid {
		return nil
	}
	return new(int(page[place]))
}

// The register values by which SMART RETURN STATUS reports the health of an ATA disk (ATA8-ACS).
const (
	ataPassed = 0xc24f
	ataFailed = 0x2cf4
)

// failedByATA reports whether an ATA disk predicts its own failure. sense is the sense data of
// SMART RETURN STATUS in descriptor format, with the descriptor ATA Status Return (SAT-3, section
// 12.2.6). Sense data in another format returns false.
func failedByATA(sense []byte) bool {
	const descriptors, ataReturn = 8, 0x09
	if len(sense) < descriptors+14 || sense[0]&0x7f != 0x72 || sense[descriptors] != ataReturn {
		return false
	}
	return uint16(sense[descriptors+9])|uint16(sense[descriptors+11])<<8 == ataFailed
}
