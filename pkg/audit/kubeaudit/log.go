package kubeaudit

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// syncInterval is the time between two syncs. A power cut loses at most the lines that were written
// in this time.
const syncInterval = time.Second

// Log is the log in a directory. It syncs the lines, because the API server does not, and records
// which part is synced. Only synced lines may be read. Otherwise a power cut could remove a line
// after its delivery, and another line would get the same number.
type Log struct {
	dir       string
	fdatasync func(*os.File) error

	mu      sync.Mutex
	present os.FileInfo // the present file with its synced size; nil if there is no file
	problem error       // error of the last sync
	changed chan struct{}
}

// NewLog returns the log in a directory, which need not exist yet. No line of the log can be read
// before Run has synced it.
func NewLog(dir string) *Log {
	return &Log{dir: dir, fdatasync: func(f *os.File) error { return unix.Fdatasync(int(f.Fd())) }, changed: make(chan struct{})}
}

// Run writes the changed files of the log to the disk, at once and then once a second until ctx
// ends.
func (l *Log) Run(ctx context.Context) {
	tick := time.NewTicker(syncInterval)
	defer tick.Stop()
	for before := map[string]os.FileInfo(nil); ; {
		now, err := l.syncChanged(before)
		if err != nil || !maps.EqualFunc(before, now, unchanged) {
			l.set(now[filepath.Join(l.dir, File)], err)
		}
		before = now
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// Changed returns a channel that is closed when the next lines have been synced to the disk, or a
// sync fails.
func (l *Log) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

func (l *Log) set(present os.FileInfo, problem error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.present, l.problem = present, problem
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *Log) get() (present os.FileInfo, problem error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.present, l.problem
}

// Newest returns the number of the last line; 0 if the log is empty or cannot be read.
func (l *Log) Newest() uint64 {
	found, err := findEnd(l.dir)
	if err != nil {
		return 0
	}
	return found.number
}

// syncChanged syncs the files that have changed since the last call, and returns the synced files
// by path, with the size that each file had before its sync.
func (l *Log) syncChanged(before map[string]os.FileInfo) (map[string]os.FileInfo, error) {
	present := filepath.Join(l.dir, File)
	now := map[string]os.FileInfo{}
	problem := l.syncFile(present, before, now)
	// The names are listed after the sync of the present file. If this file is rotated during the
	// sync, the list contains it.
	names, err := older(l.dir)
	problem = errors.Join(problem, err)
	for _, name := range names {
		problem = errors.Join(problem, l.syncFile(name, before, now))
	}
	return now, problem
}

// syncFile syncs a file if it has changed. A missing file is no error.
func (l *Log) syncFile(name string, before, now map[string]os.FileInfo) error {
	info, err := os.Lstat(name)
	if err == nil && !unchanged(before[name], info) {
		info, err = l.syncOpen(name)
	}
	if err != nil {
		return ignoreGone(err)
	}
	now[name] = info
	return nil
}

func (l *Log) syncOpen(name string) (os.FileInfo, error) {
	f, err := openFile(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if err := l.fdatasync(f); err != nil {
		return nil, &fs.PathError{Op: "fdatasync", Path: name, Err: err}
	}
	return info, nil
}

// unchanged reports whether a file is the same file as before, with the same size and time.
func unchanged(before, now os.FileInfo) bool {
	return os.SameFile(before, now) && before.Size() == now.Size() && before.ModTime().Equal(now.ModTime())
}
