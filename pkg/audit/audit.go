// Package audit keeps a record of who called what, so that a line that was changed or taken out
// later is noticed.
//
// The record is JSON, one line for each call, in files of a folder
// (audit-NNNNNNNNNNNNNNNNNNNN.jsonl, named after the number of their first line). Each line holds
// its number and the SHA-256 of the line before. Old files go when there are too many: a chain that
// begins at a number above 1 is whole from there on. Whoever has noted a line's number and digest
// can tell later that nothing up to it has changed; without such a note, a record that was written
// anew from some line on looks whole.
//
// A machine keeps two records, each with a chain of its own, so that calls that came to nothing
// cannot push out those that did something: the one without a name, and Refused. Each line of a
// named record says which one it belongs to. What goes on at present is in neither: a Journal holds
// it, so that what a power cut has ended is known afterwards.
//
// The package does not decide what is recorded where, and does not send it anywhere (package ship
// does).
package audit

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/orlop-os/orlop/pkg/durable"
)

// Call is what is recorded of one.
type Call struct {
	Subject string `json:"subject"` // of the caller's certificate, RFC 2253
	Serial  string `json:"serial"`  // of it, hexadecimal
	Role    string `json:"role"`    // "admin"; "nobody" if it gives none
	Peer    string `json:"peer"`    // address and port
	Method  string `json:"method"`  // "/orlop.v1alpha1.Machine/Reboot"
	// what the call was about, where the method does not say it
	Target string `json:"target,omitempty"`
	// gRPC's name of the status: "OK", "PermissionDenied"
	Status   string        `json:"outcome"`
	Reason   string        `json:"reason,omitempty"` // why not
	Duration time.Duration `json:"duration"`         // nanoseconds
	// the same in what is recorded at the beginning and at the end of one call
	ID string `json:"id,omitempty"`
}

// The outcomes of a call that has not ended, beside gRPC's.
const (
	Started = "Begun" // it goes on
	// the machine stopped before it had ended, so that it is not known what came of it
	Unfinished = "Unfinished"
)

// Refused is the name of the record of calls that came to nothing, and of beginnings.
const Refused = "refused"

// Entry is a line of the record.
type Entry struct {
	Number uint64    `json:"number"` // from 1
	At     time.Time `json:"at"`
	// SHA-256 of the line before, lower-case hexadecimal; empty in the first of all
	PreviousDigest string `json:"before,omitempty"`
	// the name of the record that the line belongs to; empty for the one without a name
	Record string `json:"record,omitempty"`
	Call
}

// Log is a record in a folder. Its methods may be called at once. It holds no file open between
// them, so that the file system can be unmounted.
type Log struct {
	dir, record string
	// a file's size in bytes at which the next one begins; how many there are at most
	size, files int

	mu      sync.Mutex
	file    string // the last one; empty before the first line
	written int64  // bytes of it
	number  uint64 // of the last line
	digest  string // of the last line
	grown   chan struct{}
}

// DefaultSize and DefaultFiles bound the record: some 20,000 calls. RefusedFiles bound the one of
// that name.
const (
	DefaultSize  = 1 << 20
	DefaultFiles = 8
	RefusedFiles = 4
)

// Open opens the record without a name in a folder, or begins one. A last line that a power cut has
// torn was never acknowledged, and is removed.
func Open(dir string, size, files int) (*Log, error) { return OpenNamed(dir, "", size, files) }

// OpenNamed is Open for the record of a name.
func OpenNamed(dir, record string, size, files int) (*Log, error) {
	l := &Log{dir: dir, record: record, size: size, files: files, grown: make(chan struct{})}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	names, err := l.names()
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return l, nil
	}
	last := names[len(names)-1]
	text, err := os.ReadFile(last)
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	whole := text[:bytes.LastIndexByte(text, '\n')+1]
	if err := os.Truncate(last, int64(len(whole))); err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	l.file, l.written = last, int64(len(whole))
	if len(whole) == 0 && len(names) > 1 { // the cut came with the first line of a file
		if text, err = os.ReadFile(names[len(names)-2]); err != nil {
			return nil, fmt.Errorf("audit: %w", err)
		}
		whole = text[:bytes.LastIndexByte(text, '\n')+1]
	}
	if line := lastLine(whole); len(line) > 0 {
		var e Entry
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("audit: %s: its last line cannot be read: %w", last, err)
		}
		l.number, l.digest = e.Number, digestOf(line)
	}
	return l, nil
}

func lastLine(text []byte) []byte {
	text = bytes.TrimSuffix(text, []byte("\n"))
	return text[bytes.LastIndexByte(text, '\n')+1:]
}

func digestOf(line []byte) string {
	sum := sha256.Sum256(line)
	return hex.EncodeToString(sum[:])
}

const prefix, suffix = "audit-", ".jsonl"

// names are the files in order.
func (l *Log) names() ([]string, error) {
	all, err := filepath.Glob(filepath.Join(l.dir, prefix+"*"+suffix))
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	slices.Sort(all) // the numbers in them have a fixed width
	return all, nil
}

// Append records a call, and returns when that is on the disk.
func (l *Log) Append(at time.Time, c Call) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	line, err := json.Marshal(Entry{Number: l.number + 1, At: at.UTC(), PreviousDigest: l.digest, Record: l.record, Call: c})
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	if err := l.room(); err != nil {
		return err
	}
	if err := l.write(append(bytes.Clone(line), '\n')); err != nil {
		// Half a line must not stay before the next one.
		return fmt.Errorf("audit: %w", errors.Join(err, os.Truncate(l.file, l.written)))
	}
	l.written += int64(len(line)) + 1
	l.number, l.digest = l.number+1, digestOf(line)
	close(l.grown)
	l.grown = make(chan struct{})
	return nil
}

// write appends to the last file.
func (l *Log) write(line []byte) error {
	f, err := os.OpenFile(l.file, os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(line)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// room begins the next file when the last one is full, and removes the oldest.
func (l *Log) room() error {
	if l.file != "" && l.written < int64(l.size) {
		return nil
	}
	next := filepath.Join(l.dir, fmt.Sprintf("%s%020d%s", prefix, l.number+1, suffix))
	err := os.WriteFile(next, nil, 0o600)
	if err == nil {
		err = durable.SyncDir(l.dir)
	}
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	l.file, l.written = next, 0
	names, err := l.names()
	if err != nil {
		return err
	}
	for _, old := range names[:max(0, len(names)-l.files)] {
		if err := os.Remove(old); err != nil {
			return fmt.Errorf("audit: %w", err)
		}
	}
	return nil
}

// Newest is the number of the last line; 0 before there is one.
func (l *Log) Newest() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.number
}

// Changed returns a channel that is closed when there is another line than now.
func (l *Log) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.grown
}

// Read calls do with each line after a number, as it was written, without its end, and with its own
// number; 0 for one that cannot be read.
func (l *Log) Read(after uint64, do func(number uint64, line []byte) error) error {
	names, err := l.names()
	if err != nil {
		return err
	}
	for i, name := range names {
		if i+1 < len(names) && firstOf(names[i+1]) <= after+1 {
			continue // all of it is older
		}
		err := lines(name, func(line []byte) error {
			var e Entry
			switch err := json.Unmarshal(line, &e); {
			case err != nil:
				e.Number = 0
			case e.Number <= after:
				return nil
			}
			return do(e.Number, line)
		})
		if errors.Is(err, fs.ErrNotExist) {
			continue // the oldest goes when a new one comes
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// firstOf is the number of a file's first line, by its name.
func firstOf(name string) uint64 {
	var n uint64
	// no number is number 0: nothing is skipped
	_, _ = fmt.Sscanf(strings.TrimPrefix(filepath.Base(name), prefix), "%d", &n)
	return n
}

// lines calls do with each whole line of a file.
func lines(name string, do func([]byte) error) error {
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	defer f.Close()
	for r := bufio.NewReader(f); ; {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil // what is not whole is being written
		}
		if err != nil {
			return fmt.Errorf("audit: %w", err)
		}
		if err := do(line[:len(line)-1]); err != nil {
			return err
		}
	}
}
