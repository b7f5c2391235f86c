package podlogd

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

// Position is how far a reader has read the log of a container: the next byte of a file. The time
// of the first line identifies the file, because the kubelet renames and compresses files.
type Position struct {
	Restart int    `json:"restart"` // restart count of the container
	First   string `json:"first"`   // time of the first line; empty before the first read
	Offset  int64  `json:"offset"`  // offset in the uncompressed file, in bytes
}

// record is a line of a container, or a notice of podlogd, for the receiver.
type record struct {
	at       time.Time
	stderr   bool
	text     string
	cut      bool     // the text continues in the next record of the stream
	position Position // position of the beginning of the line
	missed   uint64   // number of dropped lines; 0 if unknown
	notice   string   // text of podlogd, if the record is no line of the container
}

// stream is an incomplete line of stdout or stderr.
type stream struct {
	at    time.Time
	text  []byte   // text so far; nil if there is no incomplete line
	start Position // position of the first entry of the line
	begun uint64   // number of the line in the order in which lines of the container began
}

// log is the log of a container: how far it was read, and its incomplete lines.
type log struct {
	position Position
	streams  [2]stream // stdout, stderr
	begun    uint64    // number of lines that have begun (stream.begun)
	limit    limiter
	// within is true if the position is inside a line that is longer than the buffer of readLine.
	// The rest of the line is skipped.
	within bool

	// names and last are the file names and the present file at the end of the last turn. If they
	// have not changed, there is nothing to read.
	names string
	last  fs.FileInfo
}

// safe returns the position from which a restart of podlogd loses no line: the beginning of the
// oldest incomplete line, or the present position.
func (l *log) safe() Position {
	at, first := l.position, uint64(0)
	for _, s := range l.streams {
		if s.text != nil && (first == 0 || s.begun < first) {
			at, first = s.start, s.begun
		}
	}
	return at
}

// turnBytes is the number of bytes of an uncompressed file after which a call of log.turn ends.
// Then the reader calls log.turn for the next container. A compressed file is read to its end,
// because each turn would decompress it from the beginning.
const turnBytes = 256 << 10

// budget counts the memory for the incomplete lines of all containers of a reader, in bytes. While
// more than the limit is in use, the next incomplete line becomes a record without waiting for its
// end.
type budget struct{ used, limit int }

// turn reads new lines of a container. It passes every record to the function each. After each
// line, it moves the position to the end of the line and then calls the function next. It returns
// the first error of next or of a read. more is true if the turn ended before the end of the log.
// If the kubelet renames or removes a file during the turn, there is no error, and the next turn
// continues.
func (l *log) turn(root *os.Root, dir string, b *budget, each func(record), next func() error) (more bool, err error) {
	list, err := files(root, dir)
	if err != nil || len(list) == 0 {
		return false, ignoreGone(err)
	}
	present := dir + "/" + list[len(list)-1].name
	info, err := root.Lstat(present)
	if err != nil {
		return false, ignoreGone(err)
	}
	names := fmt.Sprint(list)
	if l.last != nil && names == l.names && os.SameFile(info, l.last) && info.Size() == l.last.Size() {
		return false, nil
	}
	l.last = nil
	at, err := l.locate(root, dir, list, each)
	if err != nil || at < 0 {
		return false, ignoreGone(err)
	}
	for i, f := range list[at:] {
		newest := at+i == len(list)-1
		if i > 0 {
			first, err := firstStamp(root, dir+"/"+f.name, f.packed)
			if err != nil {
				return false, ignoreGone(err)
			}
			if first == "" {
				if newest {
					break // the newest file has no line yet
				}
				continue
			}
			if f.restart != l.position.Restart {
				l.flushStreams(b, each)
			}
			l.position = Position{Restart: f.restart, First: first}
		}
		done, err := l.read(root, dir+"/"+f.name, f.packed, b, each, next)
		if err != nil || !done {
			return err == nil, ignoreGone(err)
		}
		if newest {
			l.names, l.last = names, info
		}
	}
	return false, nil
}

// ignoreGone returns nil for the error of a file that was removed or replaced during a turn.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNoFile) {
		return nil
	}
	return err
}

// locate returns the index of the file that contains the position; -1 if there is nothing to read.
// If the kubelet has removed the file, the position becomes the beginning of the next file, and the
// function each gets a notice.
func (l *log) locate(root *os.Root, dir string, list []logFile, each func(record)) (int, error) {
	begin, first := -1, "" // the oldest file that is newer than the position
	for i := len(list) - 1; i >= 0; i-- {
		f := list[i]
		s, err := firstStamp(root, dir+"/"+f.name, f.packed)
		if err != nil {
			return -1, err
		}
		switch {
		case s == "":
		case f.restart == l.position.Restart && s == l.position.First:
			return i, nil
		case l.position.First == "" || f.restart > l.position.Restart || f.restart == l.position.Restart && later(s, l.position.First):
			begin, first = i, s
		}
	}
	if begin < 0 {
		return -1, nil
	}
	if l.position.First != "" {
		each(record{at: time.Now(), position: l.position, notice: "lines are missing: the kubelet removed their file before their delivery"})
	}
	l.position = Position{Restart: list[begin].restart, First: first}
	return begin, nil
}

// later reports whether the time a is later than the time b. Both are texts; it returns false if a
// text is no time.
func later(a, b string) bool {
	x, errX := time.Parse(time.RFC3339Nano, a)
	y, errY := time.Parse(time.RFC3339Nano, b)
	return errX == nil && errY == nil && x.After(y)
}

// read reads the file of the position. done is true if it has reached the end of the file. An
// incomplete line at the end is read when it is complete.
func (l *log) read(root *os.Root, name string, packed bool, b *budget, each func(record), next func() error) (done bool, err error) {
	f, _, err := open(root, name)
	if err != nil {
		return false, err
	}
	defer f.Close()
	if first := stampOf(f, packed); first != l.position.First {
		return false, fs.ErrNotExist // the kubelet has renamed the file
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return false, err
	}
	if l.position.Offset == 0 {
		l.within = false // the position is at the beginning of another file
	}
	if !packed {
		if _, err := f.Seek(l.position.Offset, io.SeekStart); err != nil {
			return false, err
		}
		return l.lines(f, turnBytes, b, each, next)
	}
	text, err := content(f, true)
	if err == nil {
		_, err = io.CopyN(io.Discard, text, l.position.Offset)
	}
	if err != nil {
		return true, nil // the file is damaged by a power cut, so its rest is lost
	}
	done, err = l.lines(text, 1<<62, b, each, next)
	if failure := (*nextError)(nil); err != nil && !errors.As(err, &failure) {
		return true, nil // the file is damaged, too
	}
	return done, err
}

// nextError marks an error of next, to distinguish it from a read error.
type nextError struct{ error }

func (e *nextError) Unwrap() error { return e.error }

// lines reads lines until it has read at least stopAfter bytes. done is true at the end of the
// file.
func (l *log) lines(from io.Reader, stopAfter int64, b *budget, each func(record), next func() error) (done bool, err error) {
	r := bufio.NewReaderSize(from, 64<<10)
	for read := int64(0); read < stopAfter; {
		line, whole, err := readLine(r)
		if errors.Is(err, io.EOF) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		size := int64(len(line))
		if whole && !l.within {
			l.add(bytes.TrimSuffix(line, []byte("\n")), b, each)
		}
		l.within = !whole
		l.position.Offset += size
		read += size
		if err := next(); err != nil {
			return false, &nextError{err}
		}
	}
	return false, nil
}

// readLine returns the next line with its line end. If a line is longer than the buffer of r,
// readLine returns a part of it, and whole is false. containerd writes shorter lines. But a pod
// with a volume in the directory of logs can create a sparse file, whose zeros are a single huge
// line. Because readLine returns this line in parts, a turn can end in time for the other
// containers. For an incomplete line at the end of the file, the error is io.EOF.
func readLine(r *bufio.Reader) (line []byte, whole bool, err error) {
	line, err = r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return line, false, nil
	}
	return line, true, err
}

// add parses a line of the file and appends its text to its stream. If the line of the stream is
// then complete, add passes a record to the function each.
func (l *log) add(line []byte, b *budget, each func(record)) {
	e, ok := parse(line)
	if !ok {
		return
	}
	s := &l.streams[0]
	if e.stderr {
		s = &l.streams[1]
	}
	if s.text == nil {
		l.begun++
		s.at, s.start, s.begun, s.text = e.at, l.position, l.begun, []byte{}
	}
	b.used += len(e.text)
	s.text = append(s.text, e.text...)
	if e.partial && len(s.text) < maxText && b.used <= b.limit {
		return
	}
	l.complete(s, e.stderr, e.partial, b, each)
}

// complete passes a record with the text of a stream to the function each, if the limit permits the
// record.
func (l *log) complete(s *stream, stderr, cut bool, b *budget, each func(record)) {
	if l.limit.allow(s.at, len(s.text)) {
		if dropped := l.limit.report(time.Now()); dropped > 0 {
			each(l.droppedRecord(dropped))
		}
		each(record{at: s.at, stderr: stderr, text: string(s.text), cut: cut, position: s.start})
	}
	b.used -= len(s.text)
	*s = stream{}
}

// flushStreams makes records of the incomplete lines, because the container has ended and will not
// complete them.
func (l *log) flushStreams(b *budget, each func(record)) {
	for i := range l.streams {
		if s := &l.streams[i]; s.text != nil {
			l.complete(s, i == 1, true, b, each)
		}
	}
}

func (l *log) droppedRecord(dropped uint64) record {
	return record{at: time.Now(), position: l.position, missed: dropped, notice: fmt.Sprintf("%d lines were dropped: the container writes faster than the limit of Machine.spec.logging.pods", dropped)}
}
