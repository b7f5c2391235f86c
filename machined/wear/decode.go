package wear

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// pageSize is the size of each page of a log, in bytes.
const pageSize = 512

// Log is the content of a disk's log. A value that the disk does not report is nil.
type Log struct {
	UsedPercent    *int   `json:"usedPercent,omitempty"`    // of the rated life; can exceed 100
	SparePercent   *int   `json:"sparePercent,omitempty"`   // of the spare blocks that are left
	SpareThreshold *int   `json:"spareThreshold,omitempty"` // the least SparePercent, by its maker
	Temperature    *int   `json:"temperature,omitempty"`    // °C
	PowerOnHours   uint64 `json:"powerOnHours"`
	// data that could not be read, and sectors that cannot be read at present
	Errors     uint64    `json:"errors"`
	OutOfRange bool      `json:"outOfRange,omitempty"` // Temperature, for the disk
	Failures   []Failure `json:"failures,omitempty"`
}

// Failure is a condition in which a disk must be replaced, as the disk reports it.
type Failure string

// The failures.
const (
	FailureSpare       Failure = "its spare blocks are below their threshold"
	FailureReliability Failure = "many errors have reduced its reliability"
	FailureReadOnly    Failure = "it has become read-only"
	FailureBackup      Failure = "its buffer would lose data in a power cut"
	FailureMemory      Failure = "its persistent memory has become unreliable"
	FailurePredicted   Failure = "it predicts its own failure"
)

// errNoLog is returned for an empty log, which some virtual disks have.
var errNoLog = errors.New("the disk reports no log")

// nvmeWarnings are the bits of the field Critical Warning (NVM Express Base Specification 2.0,
// figure 207).
var nvmeWarnings = []struct {
	bit     byte
	failure Failure
}{
	{1 << 0, FailureSpare}, {1 << 2, FailureReliability}, {1 << 3, FailureReadOnly}, {1 << 4, FailureBackup}, {1 << 5, FailureMemory},
}

// nvmeTemperature is the bit of the same field for a temperature out of range.
const nvmeTemperature = 1 << 1

// decodeNVMe decodes the page SMART / Health Information of an NVMe disk (NVM Express Base
// Specification 2.0, section 5.16.1.3).
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

// wide decodes a number of 16 bytes. A number that does not fit becomes the largest that does.
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

// Numbers of attributes of ATA disks, which all makers use alike.
const (
	ataHours         = 9
	ataUncorrectable = 187
	ataTemperature   = 194
	ataPending       = 197
	ataOffline       = 198
)

// The attributes: 30 entries of 12 bytes from offset 2: number, flags, two normalized values, and
// the raw value of 6 bytes.
const (
	ataEntries   = 30
	ataEntrySize = 12
	ataFirst     = 2
	ataRaw       = 5
)

// decodeATA decodes the attributes of an ATA disk (ATA8-ACS, SMART READ DATA). Makers disagree on
// the upper bytes of the raw values, so only the lower four count.
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

// usedByATA decodes the Percentage Used Endurance Indicator in the page Solid State Device
// Statistics of an ATA disk (ACS-4, section 9.5.10); nil if the disk does not report it.
func usedByATA(page []byte) *int {
	const number, place = 7, 8              // of the page, and of the statistic
	const supported, valid = 1 << 7, 1 << 6 // flags in the last byte of the statistic
	if len(page) != pageSize || page[2] != number || page[place+7]&(supported|valid) != supported|valid {
		return nil
	}
	return new(int(page[place]))
}

// Health of an ATA disk, by the registers that SMART RETURN STATUS leaves (ATA8-ACS).
const (
	ataPassed = 0xc24f
	ataFailed = 0x2cf4
)

// failedByATA reports whether an ATA disk predicts its failure. sense is the sense data of the
// command in the form with descriptors, with the descriptor ATA Status Return (SAT-3, section
// 12.2.6). An answer in another form predicts nothing.
func failedByATA(sense []byte) bool {
	const descriptors, ataReturn = 8, 0x09
	if len(sense) < descriptors+14 || sense[0]&0x7f != 0x72 || sense[descriptors] != ataReturn {
		return false
	}
	return uint16(sense[descriptors+9])|uint16(sense[descriptors+11])<<8 == ataFailed
}
