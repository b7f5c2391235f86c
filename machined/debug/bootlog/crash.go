package bootlog

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/safefile"
)

// Limits of the crash logs, in bytes. The kernel saves the last 10 KiB of its log when it panics,
// and 10 KiB for each earlier oops. maxRecord limits a file of pstore. maxCrash limits the stored
// file.
const (
	maxRecord = 64 << 10
	maxCrash  = 256 << 10
)

// record is a file of pstore: a part of the log at the time of a crash.
type record struct {
	file  string
	why   string // "Panic#2"
	count int    // number of the crash within its boot
	part  int    // 1 is the newest part
	at    time.Time
	text  string
}

// head matches the first line of a record (pstore_dump in fs/pstore/platform.c).
var head = regexp.MustCompile(`^(\w+#(\d+)) Part(\d+)$`)

// priority matches the beginning of a record's line: "<6>[   12.345678] text".
var priority = regexp.MustCompile(`^<(\d+)>`)

// SaveCrash stores the log that the kernel saved when it crashed, in place of the log of an earlier
// crash. The parameter is the directory at which pstore is mounted. SaveCrash then removes the
// files from this directory, because the firmware has little space. It also removes unreadable
// files, and returns an error for each of them. The result is true if it stored a crash.
func (l *Log) SaveCrash(pstore string) (bool, error) {
	entries, err := os.ReadDir(pstore)
	if err != nil {
		return false, fmt.Errorf("crash: cannot list: %w", err)
	}
	var records []record
	var problems []error
	remove := func(name string) error {
		if err := os.Remove(filepath.Join(pstore, name)); err != nil {
			return fmt.Errorf("crash: cannot remove it from pstore: %w", err)
		}
		return nil
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "dmesg-") { // other files belong to other programs
			continue
		}
		r, err := readRecord(pstore, e.Name())
		if err != nil {
			problems = append(problems, fmt.Errorf("crash: cannot read a record (removed): %w", err), remove(e.Name()))
			continue
		}
		records = append(records, r)
	}
	if len(records) == 0 {
		return false, errors.Join(problems...)
	}
	if err := os.MkdirAll(l.Dir, 0o700); err != nil {
		return false, fmt.Errorf("crash: cannot store: %w", err)
	}
	if err := l.inDir(func(root *os.Root) error {
		return safefile.WriteFile(filepath.Join(root.Name(), crash), encodeCrash(records), 0o600)
	}); err != nil {
		return false, fmt.Errorf("crash: cannot store: %w", err)
	}
	for _, r := range records {
		problems = append(problems, remove(r.file))
	}
	return true, errors.Join(problems...)
}

func readRecord(pstore, name string) (record, error) {
	if strings.HasSuffix(name, ".enc.z") {
		return record{}, fmt.Errorf("%s is compressed, and the kernel could not decompress it", name)
	}
	text, err := safefile.ReadUntrusted(pstore, name, maxRecord)
	if err != nil {
		return record{}, err
	}
	info, err := os.Lstat(filepath.Join(pstore, name))
	if err != nil {
		return record{}, err
	}
	r := record{file: name, at: info.ModTime().UTC(), text: string(text)}
	first, rest, _ := strings.Cut(r.text, "\n")
	if m := head.FindStringSubmatch(first); m != nil {
		r.why, r.text = m[1], rest
		r.count, _ = strconv.Atoi(m[2]) // digits only: too large a number becomes the largest int
		r.part, _ = strconv.Atoi(m[3])
	}
	return r, nil
}

// encodeCrash returns the lines of records, oldest first. If they are too long, it drops the oldest
// lines.
func encodeCrash(records []record) []byte {
	slices.SortFunc(records, func(a, b record) int {
		return cmp.Or(cmp.Compare(a.count, b.count), cmp.Compare(b.part, a.part), cmp.Compare(a.file, b.file))
	})
	var out bytes.Buffer
	why := ""
	for _, r := range records {
		if r.why != why {
			why = r.why
			out.Write(entry{Time: r.at, Text: why}.encode())
		}
		for line := range strings.Lines(r.text) {
			e := entry{Time: r.at, Priority: 6, Text: strings.ToValidUTF8(strings.TrimRight(line, "\n\x00"), "?")}
			if m := priority.FindStringSubmatch(e.Text); m != nil {
				level, _ := strconv.Atoi(m[1])
				e.Priority, e.Text = level&7, e.Text[len(m[0]):]
			}
			if e.Text != "" {
				out.Write(e.encode())
			}
		}
	}
	text := out.Bytes()
	if len(text) > maxCrash {
		text = wholeLines(text[len(text)-maxCrash:])
	}
	return text
}

// Crash returns the log that the kernel saved when it last crashed, oldest line first. All lines
// have the time of the crash; their texts begin with the seconds since that boot. The error is
// fs.ErrNotExist if no crash is stored.
func (l *Log) Crash() ([]Line, error) {
	text, err := l.read(crash)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("kernel log: no crash is stored: %w", fs.ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	return decode(text), nil
}
