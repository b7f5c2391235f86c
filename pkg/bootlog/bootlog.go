// Package bootlog keeps the end of the kernel's log on a disk, of this start and of the one before:
// the kernel forgets its own when the machine goes down. It keeps besides what the kernel saved
// when it crashed last (pstore).
//
// What is kept is bounded: 512 KiB for each of the two starts, of which 256 KiB go at once when
// there are more, and of a flood between two batches at least the last 128 KiB. It is written in
// batches, each of which is flushed: a power cut, or a kernel that stands still, takes what was
// written to the log since the last one. The files belong to this package alone; no file is open
// between two batches, so that the disk can be unmounted. The folder above may be somebody else's:
// no link leads out of ours.
package bootlog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/kmsg"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/plainfile"
)

// maxPart is the greatest size of each of a start's two files, in bytes. The older one is dropped
// when the newer one is full.
const maxPart = 256 << 10

// The names in a log's folder: one folder for each of the two starts, which holds two files, and
// one file for the crash.
const (
	now, before, crash = "now", "before", "crash"
	older, newer       = "older", "newer"
)

// Line is a line of a log that was kept.
type Line struct {
	Time     time.Time
	Priority int // syslog(3): 0 emergency to 7 debug
	Text     string
}

// entry is a line of a file, as JSON. One that says when the kernel began goes for all lines, those
// before it too: the clock may have been wrong when they were written.
type entry struct {
	Started  time.Time `json:"started,omitzero"`
	At       int64     `json:"us,omitempty"`  // microseconds since the kernel began; or
	Time     time.Time `json:"time,omitzero"` // the time itself
	Priority int       `json:"p,omitempty"`
	Text     string    `json:"text,omitempty"`
}

func (e entry) encode() []byte {
	line, _ := json.Marshal(e) // numbers, times and texts: it cannot fail
	return append(line, '\n')
}

// Log is where the log is kept.
type Log struct {
	Dir string // of this package's own; made if it is not there
	// Every is the least time between two batches.
	Every time.Duration
	// Started tells when the kernel began, by the present clock.
	Started func() (time.Time, error)
	// Report is told what keeps the log from being written, each reason once until it is written
	// again.
	Report func(error)
}

// within does something in the log's folder, whatever somebody makes of its name or of those in it
// meanwhile.
func (l *Log) within(do func(*os.Root) error) error {
	fd, err := unix.Openat2(unix.AT_FDCWD, l.Dir, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return fmt.Errorf("%s: cannot open: %w", l.Dir, err)
	}
	defer unix.Close(fd)
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return fmt.Errorf("%s: cannot open: %w", l.Dir, errors.Unwrap(err))
	}
	defer root.Close()
	return do(root)
}

// Begin makes the log of this start the one before. It is called once in each start, before Keep.
func (l *Log) Begin() error {
	err := os.MkdirAll(l.Dir, 0o700)
	if err == nil {
		err = l.within(func(root *os.Root) error {
			if _, err := root.Lstat(now); err == nil {
				// After a cut between the two, the next start renames.
				if err := errors.Join(root.RemoveAll(before), root.Rename(now, before)); err != nil {
					return fmt.Errorf("of the start before: %w", err)
				}
			} else if !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return root.Mkdir(now, 0o700)
		})
	}
	if err != nil {
		return fmt.Errorf("kernel log: cannot keep: %w", err)
	}
	return nil
}

// Run writes what follow delivers until follow ends, which it does with its context, and writes
// the last batch then. It returns follow's error.
func (l *Log) Run(ctx context.Context, follow func(context.Context, func(kmsg.Record) error) error) error {
	var b batch
	more, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		ended <- panics.Do("the kernel's log", func() error {
			return follow(ctx, func(r kmsg.Record) error {
				b.add(entry{At: r.At.Microseconds(), Priority: r.Priority, Text: r.Text}.encode())
				select {
				case more <- struct{}{}:
				default:
				}
				return nil
			})
		})
	}()
	var w writer
	failed := ""
	write := func() {
		err := w.write(l, b.take())
		if err == nil {
			failed = ""
		} else if err.Error() != failed {
			failed = err.Error()
			l.Report(err)
		}
	}
	for {
		select {
		case <-more:
		case err := <-ended:
			write()
			return err
		}
		late := time.NewTimer(l.Every)
		select {
		case <-late.C:
			write()
		case err := <-ended:
			late.Stop()
			write()
			return err
		}
	}
}

// batch is what was not written yet: at most as much as a file takes, the newest lines.
type batch struct {
	mu    sync.Mutex
	lines []byte
}

func (b *batch) add(line []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lines = append(b.lines, line...); len(b.lines) > maxPart {
		// Half of it at once, so that a flood is not copied for each of its lines.
		b.lines = append([]byte(nil), wholeLines(b.lines[len(b.lines)-maxPart/2:])...)
	}
}

func (b *batch) take() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	lines := b.lines
	b.lines = nil
	return lines
}

// wholeLines is a text without its beginning, which may be a piece of a line.
func wholeLines(text []byte) []byte { return text[bytes.IndexByte(text, '\n')+1:] }

// clockStep is by how much the clock has to have been set for the beginning to be written again.
const clockStep = time.Second

// writer writes batches.
type writer struct {
	started time.Time // as it stands last in the newer file
}

// write appends lines to the newer file of this start, and flushes it.
func (w *writer) write(l *Log, lines []byte) error {
	if len(lines) == 0 {
		return nil
	}
	if err := l.within(func(root *os.Root) error { return w.writeTo(root, l, lines) }); err != nil {
		return fmt.Errorf("kernel log: cannot keep: %w", err)
	}
	return nil
}

func (w *writer) writeTo(root *os.Root, l *Log, lines []byte) error {
	name := filepath.Join(now, newer)
	info, err := root.Lstat(name)
	fresh := errors.Is(err, fs.ErrNotExist)
	if err == nil && info.Size()+int64(len(lines)) > maxPart {
		if err := root.Rename(name, filepath.Join(now, older)); err != nil {
			return err
		}
		fresh = true
	}
	if started, err := l.Started(); err == nil && (fresh || started.Sub(w.started).Abs() >= clockStep) {
		lines = append(entry{Started: started.UTC()}.encode(), lines...)
		w.started = started
	}
	// a pipe would wait
	f, err := root.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(lines)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil || !fresh {
		return err
	}
	dir, err := root.Open(now)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// PreviousBoot returns what was kept of the log of the start before, oldest first. The error is
// fs.ErrNotExist when nothing was.
func (l *Log) PreviousBoot() ([]Line, error) {
	var text []byte
	for _, part := range []string{older, newer} {
		one, err := l.read(filepath.Join(before, part))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		text = append(text, one...)
	}
	if text == nil {
		return nil, fmt.Errorf("kernel log: nothing was kept of the start before: %w", fs.ErrNotExist)
	}
	return decode(text), nil
}

// read reads one of the files, which may be a little larger than it should be: a batch is not
// divided.
func (l *Log) read(name string) ([]byte, error) {
	var text []byte
	err := l.within(func(root *os.Root) (err error) {
		text, err = plainfile.Read(root.Name(), name, 2*maxPart+maxCrash)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("kernel log: %w", err)
	}
	return text, nil
}

// decode understands lines. One that a power cut or a full disk has torn is left out.
func decode(text []byte) []Line {
	var entries []entry
	var started time.Time
	for line := range bytes.Lines(text) {
		var e entry
		if json.Unmarshal(line, &e) != nil {
			continue
		}
		if !e.Started.IsZero() {
			started = e.Started
			continue
		}
		entries = append(entries, e)
	}
	lines := make([]Line, len(entries))
	for i, e := range entries {
		if e.Time.IsZero() {
			e.Time = started.Add(time.Duration(e.At) * time.Microsecond)
		}
		lines[i] = Line{Time: e.Time, Priority: e.Priority, Text: e.Text}
	}
	return lines
}
