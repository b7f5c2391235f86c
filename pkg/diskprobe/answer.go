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

	"github.com/orlop-os/orlop/pkg/sanitize"
	"github.com/orlop-os/orlop/pkg/superblock"
)

// Request is what the process reads from its standard input. Descriptor 3 is the disk, those from
// 4 on are its partitions, in this order.
type Request struct {
	Disk       string `json:"disk"`       // "/dev/sdb"
	Partitions []int  `json:"partitions"` // numbers of those that are open
	File       *File  `json:"file,omitempty"`
}

// File asks for the content of one file instead of what lies on the disk.
type File struct {
	Partition int    `json:"partition"` // 0 for the whole disk
	Kind      string `json:"kind"`      // "vfat" or "iso9660"
	Name      string `json:"name"`      // relative to the root of the file system
	MaxSize   uint64 `json:"most"`      // bytes; a larger file is an error
}

// Result is what the process writes to its standard output.
type Result struct {
	Disk string `json:"disk"` // the question's
	// why the disk could not be read; the rest says nothing then
	Problem string `json:"problem,omitempty"`
	Size    uint64 `json:"size"` // bytes; 0 for a drive without a medium
	// Table is the kind of partition table: "gpt", "" for a blank disk, otherwise what is there
	// instead.
	Table string `json:"table"`
	// Mirrored says that the primary GPT is whole, and that its backup stands in the last sector.
	Mirrored bool    `json:"mirrored,omitempty"`
	Entries  []Entry `json:"entries,omitempty"` // of the GPT, by number
	// of the disk itself: one with a table may be a file system or a RAID's member, too
	Whole    superblock.Content `json:"whole"`
	Contents []PartitionContent `json:"contents,omitempty"` // of partitions, by number
	Text     []byte             `json:"text,omitempty"`     // of the file that was asked for
	Missing  bool               `json:"missing,omitempty"`  // there is no such file
}

// Entry is one line of a GPT.
type Entry struct {
	Number int       `json:"number"` // from 1
	Label  string    `json:"label"`
	Type   uuid.UUID `json:"type"`
	UUID   uuid.UUID `json:"uuid"`
	Start  uint64    `json:"start"` // bytes
	Size   uint64    `json:"size"`  // bytes
}

// PartitionContent is what a partition holds.
type PartitionContent struct {
	Number  int                `json:"number"`
	Content superblock.Content `json:"content"`
	Loader  bool               `json:"loader,omitempty"` // a boot loader that firmware would start
}

// Content is what a partition holds. One that was not examined holds data.
func (a Result) Content(number int) superblock.Content {
	if i := slices.IndexFunc(a.Contents, func(h PartitionContent) bool { return h.Number == number }); i >= 0 {
		return a.Contents[i].Content
	}
	return superblock.Content{Kind: superblock.UnknownData}
}

// Bounds of an answer.
const (
	MaxResult = 256 << 10 // bytes, without a file
	// the greatest number: the kernel shows 256 of a disk at most (DISK_MAX_PARTS)
	mostPartition = 1024
	mostEntries   = 128
	mostKind      = 120 // bytes
	mostLabel     = 256 // bytes
	mostProblem   = 500 // bytes
)

// errNonsense is an answer that no examination gives.
var errNonsense = errors.New("the examination gave an answer that makes no sense")

// decode reads and checks an answer about a disk. The author of the disk may control the process,
// so every field is checked.
func decode(text []byte, d Device, f *File) (Result, error) {
	most := uint64(MaxResult)
	if f != nil {
		most += 2 * f.MaxSize // in Base64
	}
	if uint64(len(text)) > most {
		return Result{}, fmt.Errorf("%w: it is longer than %d bytes", errNonsense, most)
	}
	var a Result
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&a); err != nil {
		return Result{}, fmt.Errorf("%w: %s", errNonsense, sanitize.ASCII(err.Error(), 100))
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Result{}, fmt.Errorf("%w: something follows it", errNonsense)
	}
	if err := a.check(d, f); err != nil {
		return Result{}, fmt.Errorf("%w: %w", errNonsense, err)
	}
	return a, nil
}

// check tells what of an answer cannot be.
func (a Result) check(d Device, f *File) error {
	switch {
	case a.Disk != d.Path:
		return errors.New("it is about another disk")
	case !d.Removable && a.Problem == "" && a.Size != d.Size:
		return errors.New("the disk has another size")
	case !fit(a.Problem, mostProblem), !fit(a.Table, mostKind):
		return errors.New("a text is too long, or not printable")
	case f == nil && (len(a.Text) > 0 || a.Missing), f != nil && uint64(len(a.Text)) > f.MaxSize:
		return errors.New("a file that was not asked for")
	case len(a.Entries) > mostEntries, len(a.Contents) > mostEntries+mostPartition:
		return errors.New("too many partitions")
	case a.Table != "gpt" && (len(a.Entries) > 0 || a.Mirrored):
		return errors.New("partitions without a table")
	case a.Table == "" && (a.Whole.Kind != "" || len(a.Contents) > 0) && f == nil && a.Problem == "":
		return errors.New("a blank disk that holds something")
	}
	last := 0
	for _, e := range a.Entries {
		if e.Number <= last || e.Number > mostEntries || e.Size == 0 || e.Start > a.Size || e.Size > a.Size-e.Start || !fit(e.Label, mostLabel) {
			return fmt.Errorf("partition %d of the table", e.Number)
		}
		last = e.Number
	}
	last = 0
	for _, h := range append([]PartitionContent{{Content: a.Whole}}, a.Contents...) {
		if h.Number < last || h.Number == last && last > 0 || h.Number > mostPartition || !fit(h.Content.Kind, mostKind) || !fit(h.Content.Label, mostLabel) {
			return fmt.Errorf("content of partition %d", h.Number)
		}
		last = h.Number
	}
	return nil
}

// fit tells whether a text is one printable line of at most so many bytes.
func fit(text string, most int) bool {
	return len(text) <= most && sanitize.Text(text) == text
}

// tidy makes a text fit.
func tidy(text string, most int) string {
	text = sanitize.Text(strings.ToValidUTF8(text, "?"))
	for len(text) > most {
		runes := []rune(text)
		text = string(runes[:len(runes)-1])
	}
	return text
}
