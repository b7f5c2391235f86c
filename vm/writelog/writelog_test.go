package writelog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

// written is a log in QEMU's format. Each write fills its sectors with a letter.
type written struct{ bytes.Buffer }

func newLog() *written {
	w := &written{}
	w.sector(magic, version, 0, SectorSize)
	return w
}

func (w *written) sector(words ...uint64) {
	b := make([]byte, SectorSize)
	for i, v := range words {
		binary.LittleEndian.PutUint64(b[8*i:], v)
	}
	w.Write(b)
}

func (w *written) write(sector, sectors uint64, kind uint64, letter string) {
	w.sector(sector, sectors, kind)
	w.WriteString(strings.Repeat(letter, int(sectors)*SectorSize))
}

func (w *written) flush() { w.sector(0, 0, flagFlush) }

func (w *written) read(t *testing.T) *Log {
	t.Helper()
	l, err := Read(bytes.NewReader(w.Bytes()), int64(w.Len()))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// image is a disk in memory. String returns the letter of each sector, and fails the test if a
// sector has different letters.
type image struct {
	t    *testing.T
	data []byte
}

func newImage(t *testing.T, sectors int) *image {
	return &image{t, bytes.Repeat([]byte("."), sectors*SectorSize)}
}

func (i *image) ReadAt(p []byte, at int64) (int, error)  { return copy(p, i.data[at:]), nil }
func (i *image) WriteAt(p []byte, at int64) (int, error) { return copy(i.data[at:], p), nil }
func (i *image) String() string {
	var s []byte
	for at := 0; at < len(i.data); at += SectorSize {
		sector := i.data[at : at+SectorSize]
		if !bytes.Equal(sector, bytes.Repeat(sector[:1], SectorSize)) {
			i.t.Errorf("sector %d has different letters", at/SectorSize)
		}
		s = append(s, sector[0])
	}
	return string(s)
}

// TestRead checks the operations of a complete log and of two incomplete logs. For the complete
// log, it also checks the number of operations before a length of the log, and the number of
// flushed operations.
func TestRead(t *testing.T) {
	w := newLog()
	w.write(2, 2, 0, "a")
	w.flush()
	w.sector(0, 8, flagDiscard)
	half := w.Len()
	w.write(5, 1, flagFUA, "b")
	l := w.read(t)
	want := []Op{
		{Sector: 2, Sectors: 2, End: 4 * SectorSize},
		{Flush: true, End: 5 * SectorSize},
		{Sectors: 8, Discard: true, End: 6 * SectorSize},
		{Sector: 5, Sectors: 1, Through: true, End: 8 * SectorSize},
	}
	if !reflect.DeepEqual(l.Ops, want) {
		t.Errorf("the operations are %+v", l.Ops)
	}
	if n := l.Before(int64(half)); n != 3 {
		t.Errorf("Before returns %d operations before the last, want 3", n)
	}
	if n := l.Flushed(4); n != 2 {
		t.Errorf("Flushed returns %d, want 2", n)
	}
	// Two incomplete logs. In the first, the data of the last write is missing. In the second, a
	// header is zero; Read ignores everything from there.
	short, err := Read(bytes.NewReader(w.Bytes()), int64(half+SectorSize))
	if err != nil || len(short.Ops) != 3 {
		t.Errorf("a log without the data of the last write is read as %+v, %v", short, err)
	}
	w.sector()
	w.write(0, 1, 0, "c")
	if hole := w.read(t); len(hole.Ops) != 4 {
		t.Errorf("operations after a zero header are read: %+v", hole.Ops)
	}
}

// TestReadDamaged checks that Read rejects an unknown flag, another format, and an empty file.
func TestReadDamaged(t *testing.T) {
	w := newLog()
	w.sector(1, 1, 1<<20)
	for name, text := range map[string]string{"an unknown flag": w.String(), "another superblock": strings.Repeat("x", 4*SectorSize), "an empty file": ""} {
		if l, err := Read(strings.NewReader(text), int64(len(text))); err == nil {
			t.Errorf("Read accepts %s: %+v", name, l)
		}
	}
}

// TestSurvivors simulates many power cuts, each with a random choice of the unflushed writes that
// survive. Flushed data is always on the disk. Later data is on the disk completely, in part or not
// at all, and the disk has no other data.
func TestSurvivors(t *testing.T) {
	w := newLog()
	w.write(0, 4, 0, "a")
	w.flush()
	w.write(2, 4, 0, "b")
	w.sector(0, 8, flagDiscard)
	w.write(6, 1, flagFUA, "t")
	w.write(7, 1, 0, "c")
	w.flush()
	l := w.read(t)
	seen := map[string]int{}
	r := rand.New(rand.NewPCG(1, 2))
	disk := Disk{Log: l, Image: newImage(t, 8)}
	for range 2000 {
		flushed, pieces := l.Survivors(6, r)
		if flushed != 2 {
			t.Fatalf("%d operations are flushed, want 2", flushed)
		}
		if err := disk.Set(flushed, pieces); err != nil {
			t.Fatal(err)
		}
		seen[disk.Image.(*image).String()]++
	}
	want := map[string]bool{}
	// The second write is missing, complete or torn.
	for _, b := range []string{"aaaa..", "aabbbb", "aaba..", "aabb..", "aabbb.", "aaabbb", "aaaabb", "aaaa.b"} {
		for _, c := range []string{".", "c"} {
			want[b+"t"+c] = true
			if seen[b+"t"+c] == 0 {
				t.Errorf("the possible state %s was never drawn", b+"t"+c)
			}
		}
	}
	for state := range seen {
		if !want[state] {
			t.Errorf("the state %s is not possible", state)
		}
	}
	if flushed, pieces := l.Survivors(7, r); flushed != 7 || len(pieces) != 0 {
		t.Errorf("after a flush, %d operations are flushed, and %v survives; want 7 and nothing", flushed, pieces)
	}
}

// TestSet checks that Set undoes the pieces of the previous call, even if pieces overlap, and that
// it rejects an earlier position in the log.
func TestSet(t *testing.T) {
	w := newLog()
	w.write(0, 3, 0, "a")
	w.write(1, 3, 0, "b")
	w.flush()
	w.write(3, 1, 0, "c")
	disk := Disk{Log: w.read(t), Image: newImage(t, 5)}
	for _, c := range []struct {
		flushed int
		pieces  []Piece
		want    string
	}{
		{0, []Piece{{0, 0, 3}, {1, 0, 2}}, "abb.."},
		{0, []Piece{{1, 1, 3}}, "..bb."},
		{0, nil, "....."},
		{3, []Piece{{3, 0, 1}}, "abbc."},
		{4, nil, "abbc."},
	} {
		if err := disk.Set(c.flushed, c.pieces); err != nil {
			t.Fatal(err)
		}
		if got := disk.Image.(*image).String(); got != c.want {
			t.Errorf("Set(%d, %v) makes the disk %s, want %s", c.flushed, c.pieces, got, c.want)
		}
	}
	if err := disk.Set(3, nil); !errors.Is(err, ErrAlreadyApplied) {
		t.Errorf("Set to an earlier position returns %v", err)
	}
}
