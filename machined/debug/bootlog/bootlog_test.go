package bootlog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/kernel/kmsg"
)

var began = time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)

func newLog(t *testing.T) *Log {
	return &Log{Dir: filepath.Join(t.TempDir(), "kernel"), Every: time.Millisecond,
		Started: func() (time.Time, error) { return began, nil }, Report: func(err error) { t.Error(err) }}
}

// start simulates one boot in which the kernel writes records.
func start(t *testing.T, l *Log, records ...kmsg.Record) {
	t.Helper()
	if err := l.Begin(); err != nil {
		t.Fatal(err)
	}
	if err := l.Run(t.Context(), func(_ context.Context, each func(kmsg.Record) error) error {
		for _, r := range records {
			if err := each(r); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func TestPreviousBoot(t *testing.T) {
	l := newLog(t)
	if _, err := l.PreviousBoot(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before the first boot: %v", err)
	}
	start(t, l, kmsg.Record{Priority: 4, At: 1500 * time.Millisecond, Text: "first\nsecond"}, kmsg.Record{Priority: 0, Text: "third"})
	if _, err := l.PreviousBoot(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("during the first boot: %v", err)
	}
	// The clock was corrected meanwhile. The correction applies to earlier lines, too.
	right := began.Add(time.Hour)
	l.Started = func() (time.Time, error) { return right, nil }
	if err := (&writer{started: began}).write(l, entry{At: 1, Text: "fourth"}.encode()); err != nil {
		t.Fatal(err)
	}
	tear(t, filepath.Join(l.Dir, now, newer))
	start(t, l)
	want := []Line{{right.Add(1500 * time.Millisecond), 4, "first\nsecond"}, {right, 0, "third"}, {right.Add(time.Microsecond), 0, "fourth"}}
	same(t, l.PreviousBoot, want)
	// A power cut occurs between the rename and the creation of the new directory.
	if err := os.Remove(filepath.Join(l.Dir, now)); err != nil {
		t.Fatal(err)
	}
	start(t, l, kmsg.Record{Text: "of the next start"})
	same(t, l.PreviousBoot, want)
	start(t, l)
	same(t, l.PreviousBoot, []Line{{right, 0, "of the next start"}})
}

// tear appends the beginning of a line, as a power cut can leave it.
func tear(t *testing.T, name string) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(`{"us":12,"te`)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

func same(t *testing.T, read func() ([]Line, error), want []Line) {
	t.Helper()
	got, err := read()
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v\ngot  %v\nwant %v", err, got, want)
	}
}

// TestBounds checks that the newest lines are stored, in at most two files for each boot.
func TestBounds(t *testing.T) {
	l := newLog(t)
	for range 2 { // two boots each: one writes line by line, one writes a flood
		if err := l.Begin(); err != nil {
			t.Fatal(err)
		}
		var w writer
		for i := range 300 {
			if err := w.write(l, entry{At: int64(i), Text: strings.Repeat("x", 2000)}.encode()); err != nil {
				t.Fatal(err)
			}
		}
		var flood []kmsg.Record
		for i := range 3000 {
			flood = append(flood, kmsg.Record{At: time.Duration(3000+i) * time.Microsecond, Text: strings.Repeat("y", 200)})
		}
		start(t, l, flood...)
		size := int64(0)
		for _, name := range []string{"before/older", "before/newer", "now/older", "now/newer"} {
			if info, err := os.Stat(filepath.Join(l.Dir, name)); err == nil {
				size += info.Size()
			}
		}
		if size < 3*maxPart/2 || size > 5*maxPart {
			t.Errorf("%d bytes are stored", size)
		}
	}
	if err := l.Begin(); err != nil {
		t.Fatal(err)
	}
	lines, err := l.PreviousBoot()
	if err != nil || len(lines) < 200 || lines[len(lines)-1].Time != began.Add(5999*time.Microsecond) {
		t.Errorf("%d lines, %v", len(lines), err)
	}
	for i := range lines[1:] {
		if !lines[i].Time.Before(lines[i+1].Time) {
			t.Fatalf("line %d is not older than the next line", i)
		}
	}
}

// TestRunRecovers checks that a write error is reported once, that Run continues when writes
// succeed again, and that it writes the last lines when it ends.
func TestRunRecovers(t *testing.T) {
	l := newLog(t)
	if err := l.Begin(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(l.Dir, now)); err != nil {
		t.Fatal(err)
	}
	reported := make(chan error, 10)
	l.Report = func(err error) { reported <- err }
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := l.Run(ctx, func(ctx context.Context, each func(kmsg.Record) error) error {
		each(kmsg.Record{Text: "lost"})
		if err := <-reported; !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("reported: %v", err)
		}
		if err := l.Begin(); err != nil {
			t.Error(err)
		}
		each(kmsg.Record{Text: "kept"})
		for {
			if _, err := os.Stat(filepath.Join(l.Dir, now, newer)); err == nil || ctx.Err() != nil {
				break
			}
		}
		each(kmsg.Record{Text: "last"})
		cancel()
		return ctx.Err()
	})
	if !errors.Is(err, context.Canceled) || len(reported) != 0 {
		t.Errorf("%v, %d more reports", err, len(reported))
	}
	if err := l.Begin(); err != nil {
		t.Fatal(err)
	}
	same(t, l.PreviousBoot, []Line{{began, 0, "kept"}, {began, 0, "last"}})
}

// TestSymlinks checks that no method follows a symbolic link that replaces the directory or an
// entry of the directory.
func TestSymlinks(t *testing.T) {
	elsewhere := t.TempDir()
	if err := os.Mkdir(filepath.Join(elsewhere, before), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(elsewhere, before, newer), []byte("not ours\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	pstore := t.TempDir()
	if err := os.WriteFile(filepath.Join(pstore, "dmesg-efi_pstore-1"), []byte("Panic#1 Part1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l := newLog(t)
	if err := os.Symlink(elsewhere, l.Dir); err != nil {
		t.Fatal(err)
	}
	if err := l.Begin(); err == nil {
		t.Error("Begin follows the link")
	}
	if err := (&writer{}).write(l, []byte("x\n")); err == nil {
		t.Error("write follows the link")
	}
	if _, err := l.PreviousBoot(); err == nil {
		t.Error("PreviousBoot follows the link")
	}
	if _, err := l.SaveCrash(pstore); err == nil {
		t.Error("SaveCrash follows the link")
	}
	inner := newLog(t)
	if err := inner.Begin(); err != nil {
		t.Fatal(err)
	}
	present := filepath.Join(inner.Dir, now)
	if err := errors.Join(os.Remove(present), os.Symlink(elsewhere, present)); err != nil {
		t.Fatal(err)
	}
	if err := (&writer{}).write(inner, []byte("x\n")); err == nil {
		t.Error("write follows a link in the directory")
	}
	var names []string
	err := filepath.WalkDir(elsewhere, func(name string, _ fs.DirEntry, err error) error {
		names = append(names, strings.TrimPrefix(name, elsewhere))
		return err
	})
	if err != nil || fmt.Sprint(names) != "[ /before /before/newer]" {
		t.Errorf("the target of the link has the files %q, %v", names, err)
	}
}

// TestCrash checks that SaveCrash stores the crash in pstore, in the order of its parts, and
// empties pstore. The error of SaveCrash names the records that cannot be stored.
func TestCrash(t *testing.T) {
	l, pstore := newLog(t), t.TempDir()
	if _, err := l.Crash(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Crash before the first crash: %v", err)
	}
	if had, err := l.SaveCrash(pstore); had || err != nil {
		t.Errorf("SaveCrash of an empty pstore: %v, %v", had, err)
	}
	for name, text := range map[string]string{
		"dmesg-efi_pstore-1": "Panic#2 Part1\n<0>[   12.5] Kernel panic - not syncing: Fatal exception\n<0>[   12.6] ---[ end ]---\n\x00",
		"dmesg-efi_pstore-2": "Panic#2 Part2\n<1>[   12.4] RIP: 0010:x\n",
		"dmesg-efi_pstore-3": "Oops#1 Part1\n<30>[   12.3] orlop: hello \xff\n", "dmesg-efi_pstore-9": "no head\n",
		"dmesg-efi_pstore-4.enc.z": "x", "console-ramoops-0": "not asked for\n",
	} {
		file := filepath.Join(pstore, name)
		if err := errors.Join(os.WriteFile(file, []byte(text), 0o600), os.Chtimes(file, began, began)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(pstore, "dmesg-efi_pstore-5"), make([]byte, maxRecord+1), 0o600); err != nil {
		t.Fatal(err)
	}
	had, err := l.SaveCrash(pstore)
	if !had || err == nil || !strings.Contains(err.Error(), "efi_pstore-4.enc.z is compressed") || !strings.Contains(err.Error(), "efi_pstore-5 has 65537 bytes") {
		t.Errorf("SaveCrash returns %v, %v", had, err)
	}
	want := []Line{
		{began, 6, "no head"}, {began, 0, "Oops#1"}, {began, 6, "[   12.3] orlop: hello ?"}, {began, 0, "Panic#2"}, {began, 1, "[   12.4] RIP: 0010:x"},
		{began, 0, "[   12.5] Kernel panic - not syncing: Fatal exception"}, {began, 0, "[   12.6] ---[ end ]---"},
	}
	same(t, l.Crash, want)
	left, err := os.ReadDir(pstore)
	if err != nil || len(left) != 1 { // console-ramoops-0 belongs to another program
		t.Errorf("pstore still has %v, %v", left, err)
	}
	// An empty pstore does not delete the stored crash.
	if had, err := l.SaveCrash(pstore); had || err != nil {
		t.Errorf("SaveCrash of the emptied pstore: %v, %v", had, err)
	}
	same(t, l.Crash, want)
	if text := encodeCrash([]record{{why: "Panic#1", text: strings.Repeat(strings.Repeat("x", 100)+"\n", 5000)}}); len(text) > maxCrash || len(decode(text)) < 1000 {
		t.Errorf("a long crash has %d encoded bytes", len(text))
	}
}
