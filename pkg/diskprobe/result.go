package diskprobe

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/orlop-os/orlop/pkg/disk/superblock"
	"github.com/orlop-os/orlop/pkg/sanitize"
)

// Request is the standard input of the examining process. File descriptor 3 is the disk; the
// descriptors from 4 on are its partitions in the order of Partitions.
type Request struct {
	Disk       string `json:"disk"`       // "/dev/sdb"
	Partitions []int  `json:"partitions"` // numbers of the open partitions
	File       *File  `json:"file,omitempty"`
}

// File requests the content of a file instead of a description of the disk.
type File struct {
	Partition int    `json:"partition"` // 0 for the whole disk
	Kind      string `json:"kind"`      // "vfat" or "iso9660"
	Name      string `json:"name"`      // relative to the root of the file system
	MaxSize   uint64 `json:"most"`      // bytes; a larger file is an error
}

// Result is the standard output of the examining process.
type Result struct {
	Disk string `json:"disk"` // path from the request
	// why the disk could not be read; the other fields are then invalid
	Problem string `json:"problem,omitempty"`
	Size    uint64 `json:"size"` // bytes; 0 for a drive without a medium
	// Table is the type of the partition table: "gpt", "" for a blank disk, otherwise a description
	// of the content.
	Table string `json:"table"`
	// Mirrored means that the primary GPT is complete and that its backup is in the last sector.
	Mirrored bool    `json:"mirrored,omitempty"`
	Entries  []Entry `json:"entries,omitempty"` // of the GPT, by number
	// content of the whole disk: a disk with a partition table can also be a file system or a RAID
	// member
	Whole    superblock.Content `json:"whole"`
	Contents []PartitionContent `json:"contents,omitempty"` // of partitions, by number
	Text     []byte             `json:"text,omitempty"`     // of the requested file
	Missing  bool               `json:"missing,omitempty"`  // the requested file does not exist
}

// Entry is an entry of a GPT.
type Entry struct {
	Number int       `json:"number"` // from 1
	Label  string    `json:"label"`
	Type   uuid.UUID `json:"type"`
	UUID   uuid.UUID `json:"uuid"`
	Start  uint64    `json:"start"` // bytes
	Size   uint64    `json:"size"`  // bytes
}

// PartitionContent is the content of a partition.
type PartitionContent struct {
	Number  int                `json:"number"`
	Content superblock.Content `json:"content"`
	// the partition has a boot loader (esp.Loader) that firmware would start
	Loader bool `json:"loader,omitempty"`
}

// Content returns the content of a partition. For a partition that was not examined it returns
// UnknownData.
func (a Result) Content(number int) superblock.Content {
	if i := slices.IndexFunc(a.Contents, func(h PartitionContent) bool { return h.Number == number }); i >= 0 {
		return a.Contents[i].Content
	}
	return superblock.Content{Kind: superblock.UnknownData}
}

// Limits of a result.
const (
	MaxResult = 256 << 10 // bytes, without a file
	// highest accepted partition number; more than the 256 partitions of a disk that the kernel
	// supports (DISK_MAX_PARTS)
	maxPartition = 1024
	maxEntries   = 128
	maxKind      = 120 // bytes
	maxLabel     = 256 // bytes
	maxProblem   = 500 // bytes
)

// errInvalid is the error for a result that a correct examining process cannot return.
var errInvalid = errors.New("the examination returned an invalid result")

// decode parses and validates the result of an examination of disk d. It validates every field,
// because a hostile disk may have taken control of the examining process.
func decode(text []byte, d Device, f *File) (Result, error) {
	most := uint64(MaxResult)
	if f != nil {
		most += 2 * f.MaxSize // in Base64
	}
	if uint64(len(text)) > most {
		return Result{}, fmt.Errorf("%w: it is longer than %d bytes", errInvalid, most)
	}
	var a Result
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&a); err != nil {
		return Result{}, fmt.Errorf("%w: %s", errInvalid, sanitize.ASCII(err.Error(), 100))
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Result{}, fmt.Errorf("%w: it is followed by more data", errInvalid)
	}
	if err := a.check(d, f); err != nil {
		return Result{}, fmt.Errorf("%w: %w", errInvalid, err)
	}
	return a, nil
}

// check returns the first invalid property of a result.
func (a Result) check(d Device, f *File) error {
	switch {
	case a.Disk != d.Path:
		return errors.New("it is about another disk")
	case !d.Removable && a.Problem == "" && a.Size != d.Size:
		return errors.New("the disk has another size")
	case !valid(a.Problem, maxProblem), !valid(a.Table, maxKind):
		return errors.New("a text is too long, or not printable")
	case f == nil && (len(a.Text) > 0 || a.Missing), f != nil && uint64(len(a.Text)) > f.MaxSize:
		return errors.New("a file that was not requested")
	case len(a.Entries) > maxEntries, len(a.Contents) > maxEntries+maxPartition:
		return errors.New("too many partitions")
	case a.Table != "gpt" && (len(a.Entries) > 0 || a.Mirrored):
		return errors.New("partitions without a table")
	case a.Table == "" && (a.Whole.Kind != "" || len(a.Contents) > 0) && f == nil && a.Problem == "":
		return errors.New("a blank disk with content")
	}
	last := 0
	for _, e := range a.Entries {
		if e.Number <= last || e.Number > maxEntries || e.Size == 0 || e.Start > a.Size || e.Size > a.Size-e.Start || !valid(e.Label, maxLabel) {
			return fmt.Errorf("partition %d of the table", e.Number)
		}
		last = e.Number
	}
	last = 0
	for _, h := range append([]PartitionContent{{Content: a.Whole}}, a.Contents...) {
		if h.Number < last || h.Number == last && last > 0 || h.Number > maxPartition || !valid(h.Content.Kind, maxKind) || !valid(h.Content.Label, maxLabel) {
			return fmt.Errorf("content of partition %d", h.Number)
		}
		last = h.Number
	}
	return nil
}

// valid reports whether a text is a single printable line of at most `most` bytes.
func valid(text string, most int) bool {
	return len(text) <= most && sanitize.Text(text) == text
}

// shorten makes a text valid: a printable line of at most `most` bytes.
func shorten(text string, most int) string {
	text = sanitize.Text(strings.ToValidUTF8(text, "?"))
	for len(text) > most {
		runes := []rune(text)
		text = string(runes[:len(runes)-1])
	}
	return text
}
