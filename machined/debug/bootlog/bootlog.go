// Package bootlog stores the end of the kernel log of the current boot and of the previous boot on
// disk, because the kernel loses its log when the machine shuts down. It also stores the log that
// the kernel saved when it last crashed (pstore).
//
// The size is bounded: 512 KiB for each of the two boots. Before a log would exceed this size, its
// older 256 KiB are dropped in one step. If the kernel writes more than 256 KiB between two
// batches, at least the last 128 KiB are stored. Lines are written in batches, and each batch is
// flushed, so a power cut or a hung kernel loses only the lines since the last batch. The files
// belong to this package alone. No file is open between two batches, so that the disk can be
// unmounted. Other users may own the parent directory, so the package follows no link out of its
// own directory.
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

	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/kernel/kmsg"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// maxPart is the maximum size in bytes of each of a boot's two files. When the newer file is full,
// it replaces the older file.
const maxPart = 256 << 10

// Names in the directory of a log. "now" is the directory of the current boot and "before" that of
// the previous boot; each contains the files "older" and "newer". "crash" is the file of the last
// crash.
const (
	now, before, crash = "now", "before", "crash"
	older, newer       = "older", "newer"
)

// Line is a stored line of a log.
type Line struct {
	Time     time.Time
	Priority int // syslog(3): 0 emergency to 7 debug
	Text     string
}

// entry is a line of a file, as JSON. An entry with Started gives the start time of the kernel for
// all lines of the boot, even for earlier lines, because the clock can have been wrong when those
// were written.
type entry struct {
	Started  time.Time `json:"started,omitzero"`
	At       int64     `json:"us,omitempty"`  // microseconds since the kernel started
	Time     time.Time `json:"time,omitzero"` // in place of At, for a crash
	Priority int       `json:"p,omitempty"`
	Text     string    `json:"text,omitempty"`
}

func (e entry) encode() []byte {
	line, _ := json.Marshal(e) // numbers, times and texts can always be encoded
	return append(line, '\n')
}

// Log stores the kernel log in a directory.
type Log struct {
	Dir string // used by this package only; created if missing
	// Every is the minimum time between two batches.
	Every time.Duration
	// Started returns the start time of the kernel, by the current clock.
	Started func() (time.Time, error)
	// Report receives errors of writing the log. If an error repeats, Report receives it only once
	// until a write succeeds.
	Report func(error)
}

// inDir calls do() with the log's directory. It does not follow links, even if another process
// replaces the directory or files in it at the same time.
func (l *Log) inDir(do func(*os.Root) error) error {
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

// Begin renames the log in "now", which the last boot wrote, to "before", and creates an empty
// directory "now". It must be called once in each boot, before Run.
func (l *Log) Begin() error {
	err := os.MkdirAll(l.Dir, 0o700)
	if err == nil {
		err = l.inDir(func(root *os.Root) error {
			if _, err := root.Lstat(now); err == nil {
				// After a power cut between the two operations, the directory "now" still exists,
				// so the next boot renames it.
				if err := errors.Join(root.RemoveAll(before), root.Rename(now, before)); err != nil {
					return fmt.Errorf("log of the previous boot: %w", err)
				}
			} else if !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return root.Mkdir(now, 0o700)
		})
	}
	if err != nil {
		return fmt.Errorf("kernel log: cannot store: %w", err)
	}
	return nil
}

// Run calls the function follow and stores the records that it delivers. The function must return
// when its context ends. Run then writes the last batch and returns the error of follow().
func (l *Log) Run(ctx context.Context, follow func(context.Context, func(kmsg.Record) error) error) error {
	var b batch
	more, ended := cell.NewSignal(), make(chan error, 1)
	go func() {
		ended <- panics.Do("the kernel's log", func() error {
			return follow(ctx, func(r kmsg.Record) error {
				b.add(entry{At: r.At.Microseconds(), Priority: r.Priority, Text: r.Text}.encode())
				more.Wake()
				return nil
			})
		})
	}()
	var w writer
	failed := ""
	write := func() {
		err := w.write(l, b.removeLines())
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

// batch holds the lines that are not written yet: at most the newest maxPart bytes.
type batch struct {
	mu    sync.Mutex
	lines []byte
}

func (b *batch) add(line []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lines = append(b.lines, line...); len(b.lines) > maxPart {
		// Drop half of the lines at once, so that a flood does not cause a copy for each line.
		b.lines = append([]byte(nil), wholeLines(b.lines[len(b.lines)-maxPart/2:])...)
	}
}

func (b *batch) removeLines() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	lines := b.lines
	b.lines = nil
	return lines
}

// wholeLines returns a text without its first line, which can be incomplete.
func wholeLines(text []byte) []byte { return text[bytes.IndexByte(text, '\n')+1:] }

// clockStep is the minimum change of the clock after which the start time is written again.
const clockStep = time.Second

// writer writes batches.
type writer struct {
	started time.Time // last start time written to the newer file
}

// write appends lines to the newer file of the current boot and flushes it.
func (w *writer) write(l *Log, lines []byte) error {
	if len(lines) == 0 {
		return nil
	}
	if err := l.inDir(func(root *os.Root) error { return w.writeTo(root, l, lines) }); err != nil {
		return fmt.Errorf("kernel log: cannot store: %w", err)
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
	// O_NONBLOCK, because the opening of a pipe with this name would block
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

// PreviousBoot returns the stored log of the previous boot, oldest line first. The error is
// fs.ErrNotExist if there is no stored log.
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
		return nil, fmt.Errorf("kernel log: no log of the previous boot is stored: %w", fs.ErrNotExist)
	}
	return decode(text), nil
}

// read reads a file. Its size can exceed maxPart a little because a batch is not split.
func (l *Log) read(name string) ([]byte, error) {
	var text []byte
	err := l.inDir(func(root *os.Root) (err error) {
		text, err = safefile.ReadUntrusted(root.Name(), name, 2*maxPart+maxCrash)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("kernel log: %w", err)
	}
	return text, nil
}

// decode parses lines. It skips a line that a power cut or a full disk truncated.
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
