package kubeaudit

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLine is the maximum size of a line in bytes; longer lines are skipped. The API server limits
// events to a quarter of this size.
const maxLine = 1 << 20

// openFile opens a file of the directory. It follows no link and does not block on a pipe: the API
// server owns the directory and could create them there.
func openFile(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: is no file", name)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// older returns the paths of the rotated files, the newest first. While the API server compresses a
// file, the compressed and the uncompressed file exist. older then returns only the uncompressed
// file, because it is complete.
func older(dir string) ([]string, error) {
	all, err := filepath.Glob(filepath.Join(dir, "audit-*.log*"))
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(name string) bool {
		plain, packed := strings.CutSuffix(name, ".gz")
		return !strings.HasSuffix(plain, ".log") || packed && slices.Contains(all, plain)
	})
	slices.Sort(all) // the names contain the time of the rotation
	slices.Reverse(all)
	return all, nil
}

// readFile calls the function do for each numbered line of a file. It returns the first error of
// do.
func readFile(name string, do func(number uint64, line []byte) error) error {
	f, err := openFile(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if !strings.HasSuffix(name, ".gz") {
		_, err = readLines(f, do)
		return err
	}
	packed, err := gzip.NewReader(f)
	if err == nil {
		_, err = readLines(packed, do)
	}
	if cut := flate.CorruptInputError(0); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) || errors.As(err, &cut) {
		return nil // a power cut damaged the file; the gap in the numbers shows the loss
	}
	return err
}

// readLines calls the function do for each numbered line, and returns the number of bytes in
// complete lines, newlines included.
func readLines(from io.Reader, do func(number uint64, line []byte) error) (whole int64, err error) {
	r := bufio.NewReaderSize(from, 64<<10)
	var line []byte
	var size int64
	for {
		part, err := r.ReadSlice('\n')
		size += int64(len(part))
		if len(line)+len(part) <= maxLine {
			line = append(line, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF):
			return whole, nil // an incomplete line is being written
		case err != nil:
			return whole, err
		}
		if number := numberOf(line); number > 0 && size <= maxLine {
			if err := do(number, line[:len(line)-1]); err != nil {
				return whole, err
			}
		}
		whole, size, line = whole+size, 0, line[:0]
	}
}

// numberOf returns the number of a line. It returns 0 for a line without a number, as version 0.2.0
// and before wrote it. It also returns 0 for an incomplete line, because the writer gives its
// number to the next line.
func numberOf(line []byte) uint64 {
	rest, ok := bytes.CutPrefix(line, []byte(`{"number":`))
	digits, _, more := bytes.Cut(rest, []byte(","))
	if !ok || !more {
		return 0
	}
	number, err := strconv.ParseUint(string(digits), 10, 64)
	if err != nil || !json.Valid(line) {
		return 0
	}
	return number
}

// end is the end of the log.
type end struct {
	number uint64 // number of the last numbered line; 0 if there is none
	line   []byte
	torn   bool // the present file ends within a line
}

// findEnd searches for the last numbered line: first in the last bytes of the present file, then in
// all files. The last lines can be without numbers if version 0.2.0 or before wrote them, for
// example after a rollback.
func findEnd(dir string) (found end, err error) {
	present := filepath.Join(dir, File)
	found, err = tail(present)
	if err != nil || found.number > 0 {
		return found, err
	}
	names, err := older(dir)
	if err != nil {
		return found, err
	}
	for _, name := range append([]string{present}, names...) {
		err := readFile(name, func(number uint64, line []byte) error {
			found.number, found.line = number, append(found.line[:0], line...)
			return nil
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return found, err
		}
		if found.number > 0 {
			break
		}
	}
	return found, nil
}

// tail searches for the last numbered line in the last maxLine bytes of a file.
func tail(name string) (found end, err error) {
	f, err := openFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return found, nil
	}
	if err != nil {
		return found, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return found, err
	}
	text := make([]byte, min(info.Size(), maxLine))
	if _, err := f.ReadAt(text, info.Size()-int64(len(text))); err != nil && !errors.Is(err, io.EOF) {
		return found, err
	}
	lines := bytes.Split(text, []byte("\n"))
	last := len(lines) - 1 // the text after the last newline
	found.torn = len(lines[last]) > 0
	for _, line := range slices.Backward(lines[:last]) {
		if number := numberOf(line); number > 0 {
			found.number, found.line = number, bytes.Clone(line)
			break
		}
	}
	return found, nil
}

// firstNumber returns the number of the first numbered line of a file; 0 if there is none.
func firstNumber(name string) (first uint64, err error) {
	found := errors.New("found")
	err = readFile(name, func(number uint64, _ []byte) error {
		first = number
		return found
	})
	if errors.Is(err, found) {
		err = nil
	}
	return first, err
}

// Reader reads new lines of the log. It has no open file between two calls of Read, because an open
// file would prevent an unmount of the file system.
type Reader struct {
	Log *Log

	file   os.FileInfo // the present file at the last call; nil before the first
	offset int64       // bytes of file that Read has processed
}

// Read calls the function do for each synced line with a number above `after`, in order. The
// argument line is valid during the call and has no newline. Read returns the first error of do, or
// the error of the last sync. After an error of do, the next Read starts in the same file. If the
// API server renames or removes a file during Read, Read returns nil, and the next Read reads the
// rest of this file if it still exists.
func (r *Reader) Read(after uint64, do func(number uint64, line []byte) error) error {
	last := after
	newer := func(number uint64, line []byte) error {
		if number <= last {
			return nil
		}
		if err := do(number, line); err != nil {
			return err
		}
		last = number
		return nil
	}
	present, err := r.Log.get()
	if err != nil || present == nil {
		return err
	}
	var names []string
	if r.file == nil || !os.SameFile(r.file, present) || present.Size() < r.offset {
		r.file = nil
		// The names are listed before the check of the present file, so the list cannot contain the
		// present file.
		if names, err = older(r.Log.dir); err != nil {
			return err
		}
	}
	f, err := openFile(filepath.Join(r.Log.dir, File))
	if err != nil {
		return ignoreGone(err)
	}
	defer f.Close()
	if now, err := f.Stat(); err != nil || !os.SameFile(present, now) {
		return err // the file was rotated: Read must wait for the next sync
	}
	if r.file == nil {
		if err := readOlder(names, last, newer); err != nil {
			return ignoreGone(err)
		}
		r.file, r.offset = present, 0
	}
	whole, err := readLines(io.NewSectionReader(f, r.offset, present.Size()-r.offset), newer)
	r.offset += whole
	return err
}

// ignoreGone returns nil for a file that no longer exists.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// readOlder reads the rotated files that contain lines with numbers above `after`, and calls the
// function do for their lines. names has the newest file first; readOlder reads the oldest file
// first.
func readOlder(names []string, after uint64, do func(number uint64, line []byte) error) error {
	var missing []string // the newest first
	for _, name := range names {
		missing = append(missing, name)
		first, err := firstNumber(name)
		if err != nil {
			return err
		}
		if first > 0 && first <= after+1 {
			break
		}
	}
	for _, name := range slices.Backward(missing) {
		if err := readFile(name, do); err != nil {
			return err
		}
	}
	return nil
}
