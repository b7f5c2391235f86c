// Package audit writes the audit log: records of API calls and their callers, in which a changed or
// removed line is detectable.
//
// A record consists of JSON lines, one for each call, in files of a directory
// (audit-NNNNNNNNNNNNNNNNNNNN.jsonl, where the number is that of the first line in the file). Each
// line holds its number and the SHA-256 of the previous line. When there are too many files, the
// oldest file is deleted. Therefore the first line of a record can have a number above 1. A client
// that stores the number and digest of a line (a Checkpoint) can verify later that no line up to it
// was changed. Without a checkpoint, a record in which all lines from some line on were replaced
// looks intact.
//
// A machine writes two records, each with its own chain: the record of changes, which has no name
// here, and the record Refused. So calls without effect cannot displace lines of calls that changed
// the machine. Each line of a named record contains the name. Calls in progress are in neither
// record: a Journal holds them, so that after a power cut the machine knows the calls that the
// power cut ended.
//
// The package does not decide which call goes to which record, and does not send records to
// receivers (package logship does).
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

	"github.com/orlop-os/orlop/pkg/safefile"
)

// Call is the recorded data of a call.
type Call struct {
	Subject string `json:"subject"` // of the caller's certificate, RFC 2253
	Serial  string `json:"serial"`  // of the certificate, hexadecimal
	Role    string `json:"role"`    // "admin"; "nobody" if the certificate has no role
	Peer    string `json:"peer"`    // address and port
	Method  string `json:"method"`  // "/orlop.v1alpha1.Machine/Reboot"
	// object of the call, if the method does not imply it
	Target string `json:"target,omitempty"`
	// gRPC status name: "OK", "PermissionDenied"
	Status   string        `json:"outcome"`
	Reason   string        `json:"reason,omitempty"` // error message of a failed call
	Duration time.Duration `json:"duration"`         // nanoseconds
	// the same in the start line and the end line of a call
	ID string `json:"id,omitempty"`
	// names of the approvers of the call (package approval)
	Approvers string `json:"approved_by,omitempty"`
}

// Statuses of a call that has not ended, in addition to those of gRPC.
const (
	Started = "Begun" // the call is in progress
	// the machine stopped during the call, so the result is unknown
	Unfinished = "Unfinished"
)

// Refused is the name of the record of rejected calls, failed calls and starts of calls.
const Refused = "refused"

// Entry is a line of a record.
type Entry struct {
	Number uint64    `json:"number"` // from 1
	At     time.Time `json:"at"`
	// SHA-256 of the previous line, lower-case hexadecimal; empty in line 1
	PreviousDigest string `json:"before,omitempty"`
	// name of the record; empty for the record without a name
	Record string `json:"record,omitempty"`
	Call
}

// Log is a record in a directory. Its methods are safe for concurrent use. No file stays open
// between two calls of methods, so that the file system can be unmounted.
type Log struct {
	dir, record string
	// size: file size in bytes from which the next line begins a new file; files: maximum number of
	// files
	size, files int

	writeMu sync.Mutex // an Append holds it until its line is on disk
	file    string     // the newest file; empty before the first line
	written int64      // bytes in file

	// guards the fields below, which Append changes only after the write, so readers do not wait
	// for the disk
	mu      sync.Mutex
	number  uint64 // number of the last line
	digest  string // digest of the last line
	changed chan struct{}
}

// DefaultSize and DefaultFiles limit the size of a record to about 20,000 calls. RefusedFiles is
// the maximum number of files of the record Refused, in place of DefaultFiles.
const (
	DefaultSize  = 1 << 20
	DefaultFiles = 8
	RefusedFiles = 4
)

// Open opens the record without a name in a directory, or creates it. It removes an incomplete last
// line: a power cut interrupted the write of this line, so its Append never returned.
func Open(dir string, size, files int) (*Log, error) { return OpenNamed(dir, "", size, files) }

// OpenNamed does for a named record what Open does for the record without a name.
func OpenNamed(dir, record string, size, files int) (*Log, error) {
	l := &Log{dir: dir, record: record, size: size, files: files, changed: make(chan struct{})}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	names, err := l.fileNames()
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
	if len(whole) == 0 && len(names) > 1 { // The power cut interrupted the first line of a file.
		if text, err = os.ReadFile(names[len(names)-2]); err != nil {
			return nil, fmt.Errorf("audit: %w", err)
		}
		whole = text[:bytes.LastIndexByte(text, '\n')+1]
	}
	if line := lastLine(whole); len(line) > 0 {
		var e Entry
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("audit: %s: cannot parse its last line: %w", last, err)
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

// fileNames returns the files of the record in order.
func (l *Log) fileNames() ([]string, error) {
	all, err := filepath.Glob(filepath.Join(l.dir, prefix+"*"+suffix))
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	slices.Sort(all) // the numbers in the names have a fixed width
	return all, nil
}

// Append writes a call to the record and returns when the line is on disk.
func (l *Log) Append(at time.Time, c Call) error {
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	line, err := json.Marshal(Entry{Number: l.number + 1, At: at.UTC(), PreviousDigest: l.digest, Record: l.record, Call: c})
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	if err := l.rotate(); err != nil {
		return err
	}
	if err := l.write(append(bytes.Clone(line), '\n')); err != nil {
		// Remove a partial line: otherwise the next line is appended to it.
		return fmt.Errorf("audit: %w", errors.Join(err, os.Truncate(l.file, l.written)))
	}
	l.written += int64(len(line)) + 1
	l.mu.Lock()
	defer l.mu.Unlock()
	l.number, l.digest = l.number+1, digestOf(line)
	close(l.changed)
	l.changed = make(chan struct{})
	return nil
}

// write appends to the newest file.
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

// rotate starts the next file when the newest file is full, and removes the oldest files above the
// limit.
func (l *Log) rotate() error {
	if l.file != "" && l.written < int64(l.size) {
		return nil
	}
	next := filepath.Join(l.dir, fmt.Sprintf("%s%020d%s", prefix, l.number+1, suffix))
	err := os.WriteFile(next, nil, 0o600)
	if err == nil {
		err = safefile.SyncDir(l.dir)
	}
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	l.file, l.written = next, 0
	names, err := l.fileNames()
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

// Newest returns the number of the last line; 0 if the record is empty.
func (l *Log) Newest() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.number
}

// Changed returns a channel that is closed when the next line is written.
func (l *Log) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// Read calls the function do for each line with a number above `after`. It passes the number of the
// line, or 0 if the line cannot be parsed, and the line as stored, without the newline.
func (l *Log) Read(after uint64, do func(number uint64, line []byte) error) error {
	names, err := l.fileNames()
	if err != nil {
		return err
	}
	for i, name := range names {
		if i+1 < len(names) && firstNumber(names[i+1]) <= after+1 {
			continue // the file contains only older lines
		}
		err := readLines(name, func(line []byte) error {
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
			continue // rotate removed the oldest file
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// firstNumber returns the number of the first line of a file, from the file name.
func firstNumber(name string) uint64 {
	var n uint64
	// n stays 0 for a name without a number; then Read skips no line
	_, _ = fmt.Sscanf(strings.TrimPrefix(filepath.Base(name), prefix), "%d", &n)
	return n
}

// readLines calls the function do for each complete line of a file.
func readLines(name string, do func([]byte) error) error {
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	defer f.Close()
	for r := bufio.NewReader(f); ; {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil // an incomplete line is being written
		}
		if err != nil {
			return fmt.Errorf("audit: %w", err)
		}
		if err := do(line[:len(line)-1]); err != nil {
			return err
		}
	}
}
