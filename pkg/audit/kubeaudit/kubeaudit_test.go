package kubeaudit

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/audit"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// syncOnce performs one of the syncs that Run performs every second.
func (l *Log) syncOnce() {
	now, err := l.syncChanged(nil)
	l.set(now[filepath.Join(l.dir, File)], err)
}

// newReader returns a reader of the log in a directory.
func newReader(dir string) *Reader { return &Reader{Log: NewLog(dir)} }

// log is a directory with the files of an audit log, to which a writer appends events.
type log struct {
	t      *testing.T
	dir    string
	w      *Writer
	events int
	turned int
}

func newLog(t *testing.T) *log {
	l := &log{t: t, dir: t.TempDir()}
	l.restart()
	return l
}

// Write implements io.Writer.
func (l *log) Write(line []byte) (int, error) {
	f, err := os.OpenFile(l.present(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return 0, err
	}
	n, err := f.Write(line)
	return n, errors.Join(err, f.Close())
}

func (l *log) present() string { return filepath.Join(l.dir, File) }

// restart replaces the writer, as a restart of the API server does.
func (l *log) restart() {
	l.t.Helper()
	w, err := NewWriter(l.dir, l)
	check(l.t, err)
	l.w = w
}

// add writes n events.
func (l *log) add(n int) {
	l.t.Helper()
	for range n {
		l.events++
		_, err := fmt.Fprintf(l.w, "{\"kind\":\"Event\",\"auditID\":\"%d\"}\n", l.events)
		check(l.t, err)
	}
}

// rotate renames the present file, as lumberjack does, and starts the next file. If packed is true,
// it compresses the previous file. It returns the path of the previous file.
func (l *log) rotate(packed bool) (name string) {
	l.t.Helper()
	l.turned++
	name = filepath.Join(l.dir, fmt.Sprintf("audit-2026-11-29T12-%02d-00.000.log", l.turned))
	check(l.t, os.Rename(l.present(), name))
	check(l.t, os.WriteFile(l.present(), nil, 0o600))
	if !packed {
		return name
	}
	text, err := os.ReadFile(name)
	check(l.t, err)
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err = z.Write(text)
	check(l.t, errors.Join(err, z.Close(), os.WriteFile(name+".gz", b.Bytes(), 0o600), os.Remove(name)))
	return name + ".gz"
}

// read returns the numbers of the lines that a reader finds. The parameter after is the number of
// the last line that it skips. read verifies the chain of these lines.
func read(t *testing.T, r *Reader, after uint64) (numbers []uint64) {
	t.Helper()
	chain := audit.Chain{Record: Record}
	r.Log.syncOnce()
	check(t, r.Read(after, func(number uint64, line []byte) error {
		e, err := chain.Check(line)
		if err == nil && e.Number != number {
			err = fmt.Errorf("line %d has the number %d", number, e.Number)
		}
		numbers = append(numbers, number)
		return err
	}))
	return numbers
}

func upTo(first, last uint64) (all []uint64) {
	for n := first; n <= last; n++ {
		all = append(all, n)
	}
	return all
}

// TestChain checks that each line is read once, in order and with an intact chain, over rotations,
// compression and restarts of the API server.
func TestChain(t *testing.T) {
	l := newLog(t)
	r := newReader(l.dir)
	var got []uint64
	next := func() {
		t.Helper()
		var after uint64
		if len(got) > 0 {
			after = got[len(got)-1]
		}
		got = append(got, read(t, r, after)...)
	}
	next()
	l.add(3)
	next()
	next()
	l.add(2)
	l.restart()
	l.add(1)
	next()
	l.add(2) // read from the older file
	l.rotate(true)
	l.add(2)
	l.rotate(false)
	l.restart() // the present file is empty
	l.add(4)
	next()
	l.rotate(true)
	next()
	l.add(1)
	next()
	if want := upTo(1, 15); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if all := read(t, newReader(l.dir), 0); !slices.Equal(all, upTo(1, 15)) || NewLog(l.dir).Newest() != 15 {
		t.Errorf("a new receiver gets the lines %v; the newest is %d", all, NewLog(l.dir).Newest())
	}
	if some := read(t, newReader(l.dir), 7); !slices.Equal(some, upTo(8, 15)) {
		t.Errorf("a reader that starts after line 7 gets %v", some)
	}
}

// TestEventStays checks that a line is the unchanged event, with the fields of the chain inserted
// before its first field.
func TestEventStays(t *testing.T) {
	l := newLog(t)
	l.add(2)
	text, err := os.ReadFile(l.present())
	check(t, err)
	first, second, _ := strings.Cut(string(text), "\n")
	if want := `{"number":1,"record":"kubernetes","kind":"Event","auditID":"1"}`; first != want {
		t.Errorf("%s, want %s", first, want)
	}
	if want := `{"number":2,"before":"` + digestOf([]byte(first)) + `","record":"kubernetes","kind":"Event","auditID":"2"}` + "\n"; second != want {
		t.Errorf("%s, want %s", second, want)
	}
	for _, bad := range []string{"", "x\n", "{}", "{\"a\":\n1}\n"} {
		if _, err := l.w.Write([]byte(bad)); err == nil {
			t.Errorf("%q is accepted as an event", bad)
		}
	}
}

// TestFormerLines checks that a reader skips the lines of an old version, which have no numbers,
// before an upgrade and after a rollback, and that the chain continues.
func TestFormerLines(t *testing.T) {
	l := newLog(t)
	former := []byte("{\"kind\":\"Event\",\"auditID\":\"former\"}\n")
	_, err := l.Write(former)
	check(t, err)
	l.restart()
	l.add(2)
	_, err = l.Write(bytes.Repeat(former, maxLine/len(former)+1)) // no number in the last bytes
	check(t, err)
	l.restart()
	l.add(1)
	if got := read(t, newReader(l.dir), 0); !slices.Equal(got, upTo(1, 3)) {
		t.Errorf("%v", got)
	}
}

// full is a log on a full disk: its Write fails after some bytes.
type full struct {
	*log
	left int
}

func (f *full) Write(line []byte) (int, error) {
	if f.left >= len(line) {
		return f.log.Write(line)
	}
	n, err := f.log.Write(line[:f.left])
	return n, cmp.Or(err, error(unix.ENOSPC))
}

// TestTornLine checks that the incomplete line that a full disk or a power cut leaves causes the
// loss of no other line.
func TestTornLine(t *testing.T) {
	l := newLog(t)
	l.add(1)
	disk := &full{l, 20}
	l.w.out = disk
	if _, err := l.w.Write([]byte("{\"kind\":\"Event\"}\n")); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%v", err)
	}
	r := newReader(l.dir)
	if got := read(t, r, 0); !slices.Equal(got, upTo(1, 1)) {
		t.Errorf("%v", got)
	}
	disk.left = 1 << 20
	l.add(1)
	if got := read(t, r, 1); !slices.Equal(got, upTo(2, 2)) {
		t.Errorf("%v", got)
	}
	text, err := os.ReadFile(l.present())
	check(t, err)
	check(t, os.WriteFile(l.present(), text[:len(text)-5], 0o600)) // the power is cut
	l.restart()
	l.add(1)
	if got := read(t, newReader(l.dir), 0); !slices.Equal(got, upTo(1, 2)) {
		t.Errorf("after a power cut: %v", got)
	}
}

// TestDamagedFiles checks that deleted files, files that a power cut damaged, and lines that are
// too long cause a gap in the numbers, but no error.
func TestDamagedFiles(t *testing.T) {
	l := newLog(t)
	l.add(2)
	check(t, os.Remove(l.rotate(true)))
	l.add(2)
	check(t, os.Truncate(l.rotate(true), 0))
	l.add(2)
	cut := l.rotate(true)
	info, err := os.Stat(cut)
	check(t, err)
	check(t, os.Truncate(cut, info.Size()/2))
	l.add(1)
	_, err = fmt.Fprintf(l, "{\"number\":1000,%s}\n", strings.Repeat("x", maxLine))
	check(t, err)
	l.add(1)
	got := []uint64{}
	r := newReader(l.dir)
	r.Log.syncOnce()
	check(t, r.Read(0, func(number uint64, _ []byte) error { got = append(got, number); return nil }))
	if len(got) < 2 || !slices.Equal(got[len(got)-2:], upTo(7, 8)) || got[0] < 5 {
		t.Errorf("%v", got)
	}
}

// TestNoFile checks that the reader follows no link and waits for no pipe. A compromised API server
// could create a link or a pipe under the name of the log.
func TestNoFile(t *testing.T) {
	for what, put := range map[string]func(name string) error{
		"a link": func(name string) error { return os.Symlink("/etc/passwd", name) },
		"a pipe": func(name string) error { return unix.Mkfifo(name, 0o600) },
	} {
		dir := t.TempDir()
		check(t, put(filepath.Join(dir, File)))
		r := newReader(dir)
		r.Log.syncOnce()
		if err := r.Read(0, func(uint64, []byte) error { return nil }); err == nil {
			t.Errorf("Read returns no error for %s", what)
		}
		if n := r.Log.Newest(); n != 0 {
			t.Errorf("the newest line of %s is line %d, want 0", what, n)
		}
	}
}

// TestSync checks that the log is synced within a second, with or without a reader, that a file
// without new lines is not synced again, and that a reader gets a line only after the sync of the
// line.
func TestSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(t)
		files := NewLog(l.dir)
		var mu sync.Mutex
		var syncs []string
		var broken error
		files.fdatasync = func(f *os.File) error {
			mu.Lock()
			defer mu.Unlock()
			syncs = append(syncs, filepath.Base(f.Name()))
			return broken
		}
		disk := func(err error) {
			mu.Lock()
			defer mu.Unlock()
			broken = err
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); files.Run(ctx) }()
		r := &Reader{Log: files}
		second := func(want ...string) {
			t.Helper()
			synctest.Wait()
			time.Sleep(syncInterval) // on the virtual clock of the bubble
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(syncs, want) {
				t.Errorf("synced: %q, want %q", syncs, want)
			}
			syncs = nil
		}
		lines := func(after uint64, want ...uint64) {
			t.Helper()
			var got []uint64
			check(t, r.Read(after, func(number uint64, _ []byte) error { got = append(got, number); return nil }))
			if !slices.Equal(got, want) {
				t.Errorf("lines %v, want %v", got, want)
			}
		}
		second()
		l.add(2)
		lines(0)
		second(File)
		l.add(1)
		lines(0, 1, 2)
		second(File)
		lines(2, 3)
		second()
		l.add(1)
		turned := filepath.Base(l.rotate(false))
		l.add(1)
		lines(3) // the end of the rotated file is not on the disk
		second(File, turned)
		lines(3, 4, 5)
		l.add(1)
		disk(unix.EIO)
		second(File)
		if err := r.Read(5, func(uint64, []byte) error { return nil }); !errors.Is(err, unix.EIO) || !strings.Contains(err.Error(), File) {
			t.Errorf("after a failed sync: %v", err)
		}
		disk(nil)
		second(File)
		lines(5, 6)
		stop()
		<-ended
	})
}
