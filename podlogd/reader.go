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

// Position is the place of a reader in the log of a container: the next byte of a file. The time of
// the first line identifies the file, which the kubelet renames and compresses.
type Position struct {
	Restart int    `json:"restart"` // of the container
	First   string `json:"first"`   // time of the first line of the file; empty before any line
	Offset  int64  `json:"offset"`  // in the file without compression
}

// record is a line of a container for the receiver.
type record struct {
	at       time.Time
	stderr   bool
	text     string
	cut      bool     // the text continues in the next record of the stream
	position Position // of the beginning of the line
	missed   uint64   // so many lines were dropped; 0 if unknown
	notice   string   // a text of this program, instead of a line of the container
}

// stream is the beginning of an incomplete line of stdout or stderr.
type stream struct {
	at    time.Time
	text  []byte   // nil for none
	start Position // of its first entry
	begun uint64   // order of the beginnings of a container
}

// log is the log of a container, and how far it was read.
type log struct {
	position Position
	streams  [2]stream // stdout, stderr
	begun    uint64
	limit    limiter
	// within reports that the position is within a line that is too long for a record.
	within bool

	// The names and the present file after the last turn: without a change, there is nothing to
	// read.
	names string
	last  fs.FileInfo
}

// safe returns the position from which a restart continues without a loss: before the entries of
// incomplete lines.
func (l *log) safe() Position {
	at, first := l.position, uint64(0)
	for _, s := range l.streams {
		if s.text != nil && (first == 0 || s.begun < first) {
			at, first = s.start, s.begun
		}
	}
	return at
}

// turnBytes is the number of bytes of a plain file after which the next container has its turn. A
// compressed file is read to its end, because each turn has to decompress it from the beginning.
const turnBytes = 256 << 10

// budget is the memory for incomplete lines of all containers of a reader, in bytes. When they have
// more, the parts become records.
type budget struct{ used, most int }

// turn reads the new lines of a container: each gets the records of a line, and next is called
// after each line, when the position is behind it. turn returns their first error. A file that the
// kubelet renames or removes meanwhile is no error: the next turn finds the rest.
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
					break // it has no line yet
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

// ignoreGone returns nil for a file that no longer exists, or that was replaced meanwhile.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNoFile) {
		return nil
	}
	return err
}

// locate returns the index of the file of the position, and -1 if there is nothing to read. If the
// kubelet has removed the file, the position becomes the beginning of the next file.
func (l *log) locate(root *os.Root, dir string, list []logFile, each func(record)) (int, error) {
	begin, first := -1, "" // the oldest file behind the position
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

// later reports whether a time in its written form is later than another.
func later(a, b string) bool {
	x, errX := time.Parse(time.RFC3339Nano, a)
	y, errY := time.Parse(time.RFC3339Nano, b)
	return errX == nil && errY == nil && x.After(y)
}

// read reads the file of the position. done reports whether it has reached the end; an incomplete
// line is read when it is complete.
func (l *log) read(root *os.Root, name string, packed bool, b *budget, each func(record), next func() error) (done bool, err error) {
	f, _, err := open(root, name)
	if err != nil {
		return false, err
	}
	defer f.Close()
	if first := stampOf(f, packed); first != l.position.First {
		return false, fs.ErrNotExist // the kubelet has renamed it meanwhile
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return false, err
	}
	if l.position.Offset == 0 {
		l.within = false // another file
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
		return true, nil // damaged by a power cut: the rest is in no file
	}
	done, err = l.lines(text, 1<<62, b, each, next)
	if failure := (*nextError)(nil); err != nil && !errors.As(err, &failure) {
		return true, nil // likewise
	}
	return done, err
}

// nextError is an error of next.
type nextError struct{ error }

func (e *nextError) Unwrap() error { return e.error }

// lines reads lines up to a number of bytes.
func (l *log) lines(from io.Reader, most int64, b *budget, each func(record), next func() error) (done bool, err error) {
	r := bufio.NewReaderSize(from, 64<<10)
	for read := int64(0); read < most; {
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

// readLine returns a line with its end, or a part of a line that is longer than the buffer of r. A
// part at a time lets the other containers have their turns: containerd writes no such line, but a
// pod with a volume of the directory can make a file of holes, in which no line ends. An incomplete
// line is io.EOF.
func readLine(r *bufio.Reader) (line []byte, whole bool, err error) {
	line, err = r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return line, false, nil
	}
	return line, true, err
}

// add takes a line of the file: it completes a line of a stream, which each gets.
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
	if e.partial && len(s.text) < maxText && b.used <= b.most {
		return
	}
	l.complete(s, e.stderr, e.partial, b, each)
}

// complete makes a record of the text of a stream.
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

// flushStreams makes records of incomplete lines, which nothing continues.
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
