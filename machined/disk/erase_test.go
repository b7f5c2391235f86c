package disk

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// medium is a partition on a disk that may report success without an effect.
type medium struct {
	data                  []byte
	discards, zeroes      func(m *medium, start, length uint64) error
	writes                bool // a plain write changes the content
	unreadable            bool
	zeroRequests, written int
}

// The functions does, keeps and cannot are possible reactions of a disk to a request to erase a
// range: it erases the range, it reports success and retains the content, or it reports an error.
func does(m *medium, start, length uint64) error { clear(m.data[start : start+length]); return nil }
func keeps(*medium, uint64, uint64) error        { return nil }
func cannot(*medium, uint64, uint64) error       { return errors.New("operation not supported") }

func (m *medium) size() uint64 { return uint64(len(m.data)) }
func (m *medium) discardRange(start, length uint64) error {
	return m.discards(m, start, length)
}
func (m *medium) zeroOut(start, length uint64) error {
	m.zeroRequests++
	return m.zeroes(m, start, length)
}
func (m *medium) write(p []byte, start uint64) error {
	m.written += len(p)
	if m.writes {
		copy(m.data[start:], p)
	}
	return nil
}
func (m *medium) flush() error { return nil }
func (m *medium) readBack(p []byte, start uint64) error {
	if m.unreadable {
		return errors.New("input/output error")
	}
	copy(p, m.data[start:])
	return nil
}

// asErasable is a medium that has the method discard, which the functions under test call.
type asErasable struct{ *medium }

func (m asErasable) discard(start, length uint64) error { return m.discardRange(start, length) }

// secrets returns the content of a partition. The size of the content is not a multiple of
// erasePiece.
func secrets() []byte { return bytes.Repeat([]byte("a key "), (8<<20)/6+100) }

// TestOverwrite checks that overwriteAll erases the content of a partition or returns an error,
// also if the disk reports success without an effect.
func TestOverwrite(t *testing.T) {
	for _, c := range []struct {
		name    string
		zeroes  func(*medium, uint64, uint64) error
		writes  bool
		written bool // overwriteAll makes plain writes
		fails   bool
	}{
		{"the disk zeroes", does, true, false, false},
		{"the disk cannot zero", cannot, true, true, false},
		{"the disk reports that it zeroes, without an effect", keeps, true, true, false},
		{"the disk zeroes only a part", func(m *medium, _, length uint64) error { return does(m, 0, length-1) }, true, true, false},
		{"no request and no write has an effect", keeps, false, true, true},
	} {
		m := &medium{data: secrets(), zeroes: c.zeroes, writes: c.writes}
		err := overwriteAll(t.Context(), asErasable{m})
		if (err != nil) != c.fails || (m.written > 0) != c.written {
			t.Errorf("%s: %v, %d bytes written", c.name, err, m.written)
		}
		if gone := len(bytes.Trim(m.data, "\x00")) == 0; gone == c.fails {
			t.Errorf("%s: the content is erased: %t", c.name, gone)
		}
	}
	m := &medium{data: secrets(), zeroes: does, unreadable: true}
	if err := overwriteAll(t.Context(), asErasable{m}); err == nil {
		t.Error("a partition that cannot be read back counts as erased")
	}
}

// TestDiscard checks that the text of discardAll says whether the content of the partition can
// still be read.
func TestDiscard(t *testing.T) {
	const readable = "CAN STILL BE READ"
	for _, c := range []struct {
		name             string
		discards, zeroes func(*medium, uint64, uint64) error
		time             bool // there is time to overwrite
		want             string
		gone             bool
	}{
		{"the disk discards", does, cannot, true, "read back as zeros", true},
		{"the disk reports that it discards, without an effect", keeps, does, true, "but still returns it; the whole partition was overwritten", true},
		{"the disk cannot discard", cannot, does, true, "cannot discard; the whole partition was overwritten", true},
		{"the disk can neither discard nor zero", cannot, cannot, true, readable, false},
		{"the disk reports both, without an effect", keeps, keeps, true, readable, false},
		{"no time to overwrite", keeps, does, false, readable, false},
	} {
		now := time.Unix(1000, 0)
		end := now
		if c.time {
			end = now.Add(time.Minute)
		}
		m := &medium{data: secrets(), discards: c.discards, zeroes: c.zeroes, writes: true}
		said, err := discardAll(t.Context(), asErasable{m}, end, func() time.Time { return now })
		if err != nil || !strings.Contains(said, c.want) {
			t.Errorf("%s: %q, %v", c.name, said, err)
		}
		if gone := len(bytes.Trim(m.data, "\x00")) == 0; gone != c.gone || gone == strings.Contains(said, readable) {
			t.Errorf("%s: the content is erased: %t, discardAll reports %q", c.name, gone, said)
		}
	}
}

// TestDiscardIsVerifiedEverywhere checks that discardAll overwrites the partition if a discard has
// retained content at its start, in its middle or at its end.
func TestDiscardIsVerifiedEverywhere(t *testing.T) {
	for _, kept := range []uint64{0, 3 << 20, 8 << 20} {
		some := func(m *medium, start, length uint64) error {
			before := bytes.Clone(m.data[kept : kept+100])
			clear(m.data)
			copy(m.data[kept:], before)
			return nil
		}
		m := &medium{data: secrets(), discards: some, zeroes: does}
		if said, err := discardAll(t.Context(), asErasable{m}, time.Now().Add(time.Minute), time.Now); err != nil || m.zeroRequests == 0 {
			t.Errorf("with 100 bytes retained at %d: %q, %v", kept, fmt.Sprint(said), err)
		}
	}
}
