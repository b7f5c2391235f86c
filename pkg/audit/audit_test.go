package audit

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func call(method string) Call {
	return Call{Subject: "CN=admin,O=orlop:admin", Serial: "1f", Role: "admin", Peer: "10.0.0.1:4711", Method: method, Status: "OK", Duration: time.Millisecond}
}

func open(t *testing.T, dir string) *Log {
	t.Helper()
	l, err := Open(dir, 1000, 3)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func record(t *testing.T, l *Log, methods ...string) {
	t.Helper()
	for _, m := range methods {
		if err := l.Append(noon, call(m)); err != nil {
			t.Fatal(err)
		}
	}
}

func all(t *testing.T, l *Log, after uint64) [][]byte {
	t.Helper()
	var lines [][]byte
	if err := l.Read(after, func(_ uint64, line []byte) error { lines = append(lines, bytes.Clone(line)); return nil }); err != nil {
		t.Fatal(err)
	}
	return lines
}

// verify checks lines as a client does.
func verify(lines [][]byte, want Checkpoint) (Chain, error) {
	c := Chain{Want: want}
	for _, line := range lines {
		if _, err := c.Check(line); err != nil {
			return c, err
		}
	}
	return c, c.End()
}

func TestFirstLine(t *testing.T) {
	l := open(t, t.TempDir())
	record(t, l, "/a/B")
	const want = `{"number":1,"at":"2026-01-01T12:00:00Z","subject":"CN=admin,O=orlop:admin","serial":"1f","role":"admin","peer":"10.0.0.1:4711","method":"/a/B","outcome":"OK","duration":1000000}`
	if got := all(t, l, 0); len(got) != 1 || string(got[0]) != want {
		t.Errorf("%s", got)
	}
}

// TestReopen checks that a record continues each time it is opened: with several files, and after a
// power cut that left an incomplete line.
func TestReopen(t *testing.T) {
	dir := t.TempDir()
	for range 4 {
		l := open(t, dir)
		record(t, l, "/a/B", "/a/C", "/a/D")
		names, err := l.fileNames()
		if err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(names[len(names)-1], os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		f.WriteString(`{"number":99,"torn`)
		f.Close()
	}
	// The power cut interrupts the first line of a file.
	if err := os.WriteFile(filepath.Join(dir, prefix+"00000000000000000013"+suffix), []byte(`{"num`), 0o600); err != nil {
		t.Fatal(err)
	}
	l := open(t, dir)
	record(t, l, "/a/E")
	lines := all(t, l, 0)
	c, err := verify(lines, Checkpoint{})
	if err != nil || c.Last.Number != 13 {
		t.Errorf("last line %v, %v", c.Last, err)
	}
	if got := all(t, l, 11); len(got) != 2 || !bytes.Contains(got[1], []byte("/a/E")) {
		t.Errorf("lines after line 11: %s", got)
	}
}

// TestBounded checks that the oldest files are deleted, and that the remaining files are a complete
// chain.
func TestBounded(t *testing.T) {
	l := open(t, t.TempDir())
	for range 100 {
		record(t, l, "/a/B")
	}
	names, err := l.fileNames()
	if err != nil || len(names) != 3 {
		t.Errorf("%q, %v", names, err)
	}
	c, err := verify(all(t, l, 0), Checkpoint{})
	if err != nil || c.First.Number < 80 || c.Last.Number != 100 {
		t.Errorf("%v to %v, %v", c.First, c.Last, err)
	}
}

// TestTampering checks that every change of a record is detected. Some changes are detected only
// with a checkpoint.
func TestTampering(t *testing.T) {
	l := open(t, t.TempDir())
	record(t, l, "/a/B", "/a/C", "/a/D", "/a/E")
	lines := all(t, l, 0)
	whole, err := verify(lines, Checkpoint{})
	if err != nil {
		t.Fatal(err)
	}
	rewritten := open(t, t.TempDir())
	record(t, rewritten, "/a/B", "/a/X", "/a/D", "/a/E")
	changed := append([][]byte{lines[0], bytes.Replace(lines[1], []byte("/a/C"), []byte("/a/X"), 1)}, lines[2:]...)
	for name, c := range map[string]struct {
		lines [][]byte
		says  string
	}{
		"a changed line":      {changed, "line 2 does not match the digest in line 3"},
		"a removed line":      {[][]byte{lines[0], lines[2], lines[3]}, "line 1 is followed by line 3"},
		"two lines swapped":   {[][]byte{lines[0], lines[2], lines[1], lines[3]}, "line 1 is followed by line 3"},
		"a removed end":       {lines[:3], "the end is missing"},
		"a rewritten record":  {all(t, rewritten, 0), "line 4 does not match the checkpoint"},
		"an invalid line":     {[][]byte{lines[0], []byte("x")}, "the line after 1 cannot be read"},
		"a forged first line": {[][]byte{[]byte(`{"number":1,"before":"00"}`)}, "not the beginning"},
		"no line":             {nil, "the end is missing"},
	} {
		if _, err := verify(c.lines, whole.Last); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := verify(lines, whole.Last); err != nil {
		t.Errorf("an unchanged record: %v", err)
	}
	if _, err := verify(lines[2:], whole.First); err == nil || !strings.Contains(err.Error(), "too old") {
		t.Errorf("the line of the checkpoint is deleted: %v", err)
	}
}

func TestParseCheckpoint(t *testing.T) {
	m := Checkpoint{4711, strings.Repeat("8f", 32)}
	if got, err := ParseCheckpoint(m.String()); err != nil || got != m {
		t.Errorf("%v, %v", got, err)
	}
	for _, text := range []string{"", "4711", ":", "x:" + m.Digest, "4711:" + m.Digest + "0", "4711:" + strings.Repeat("8g", 32), "-1:" + m.Digest} {
		if _, err := ParseCheckpoint(text); err == nil {
			t.Errorf("%q is accepted as a checkpoint", text)
		}
	}
}

// TestAppendHangs checks that a reader does not wait for a write that hangs.
func TestAppendHangs(t *testing.T) {
	l := open(t, t.TempDir())
	record(t, l, "/a/B")
	// a FIFO without a reader blocks each write
	if err := errors.Join(os.Remove(l.file), unix.Mkfifo(l.file, 0o600)); err != nil {
		t.Fatal(err)
	}
	grown, appended, read := l.Changed(), make(chan error, 1), make(chan uint64, 1)
	go func() { appended <- l.Append(noon, call("/a/B")) }()
	for l.writeMu.TryLock() { // until the write has begun
		l.writeMu.Unlock()
		time.Sleep(time.Millisecond)
	}
	go func() { l.Changed(); read <- l.Newest() }()
	select {
	case number := <-read:
		if number != 1 {
			t.Errorf("during the write, the newest line is %d", number)
		}
	case <-time.After(20 * time.Second):
		t.Error("a reader waits for the write")
	}
	reader, err := os.OpenFile(l.file, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-appended; err == nil {
		t.Error("the write into the FIFO did not fail")
	}
	select {
	case <-grown:
		t.Error("a waiting reader is woken after a failed write")
	default:
	}
	if n := l.Newest(); n != 1 {
		t.Errorf("after the failed write, the newest line is %d", n)
	}
	if err := reader.Close(); err != nil {
		t.Error(err)
	}
}

// TestConcurrentAppend checks that lines of concurrent callers form one chain, and that a reader
// sees each line once.
func TestConcurrentAppend(t *testing.T) {
	l := open(t, t.TempDir())
	l.size = 1 << 20
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			for range 10 {
				if err := l.Append(noon, call("/a/B")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	var c Chain
	enough := errors.New("enough")
	deadline := time.After(20 * time.Second)
	for c.Last.Number < 40 {
		grown := l.Changed()
		err := l.Read(c.Last.Number, func(_ uint64, line []byte) error {
			if _, err := c.Check(line); err != nil {
				t.Error(err)
				return enough
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if c.Last.Number == 40 {
			break
		}
		select {
		case <-grown:
		case <-deadline:
			t.Fatalf("the reader got only %d lines", c.Last.Number)
		}
	}
	callers.Wait()
}
