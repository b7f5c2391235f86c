package supervise

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
)

func texts(lines []LogLine) string {
	var all []string
	for _, line := range lines {
		all = append(all, fmt.Sprintf("%d:%s", line.Seq, line.Text))
	}
	return strings.Join(all, " ")
}

func TestLines(t *testing.T) {
	for _, c := range []struct {
		name            string
		lines, bytes    int
		writes          []string
		tail            int
		want            string
		wantAfterFlush  string
		bytesAtMostKept int
	}{
		{"pieces become lines", 9, 9999, []string{"a", "b\nc", "\r\n", "\nd"}, 0, "1:ab 2:c 3:", "1:ab 2:c 3: 4:d", 9999},
		{"only the last lines", 2, 9999, []string{"a\nb\nc\nd\n"}, 0, "3:c 4:d", "3:c 4:d", 9999},
		{"tail", 9, 9999, []string{"a\nb\nc\n"}, 2, "2:b 3:c", "2:b 3:c", 9999},
		{"bytes", 9, 2*lineCost + 4, []string{"aa\nbb\ncc\n"}, 0, "2:bb 3:cc", "2:bb 3:cc", 2*lineCost + 4},
		{"the last line is always retained", 9, 1, []string{"aaaa\nbbbb\n"}, 0, "2:bbbb", "2:bbbb", lineCost + 4},
	} {
		r := NewLogRing(c.lines, c.bytes)
		for _, w := range c.writes {
			if n, err := r.Write([]byte(w)); n != len(w) || err != nil {
				t.Fatalf("%s: Write = %d, %v", c.name, n, err)
			}
		}
		if got := texts(r.Tail(c.tail)); got != c.want {
			t.Errorf("%s: %q; want %q", c.name, got, c.want)
		}
		r.Flush()
		if got := texts(r.Tail(c.tail)); got != c.wantAfterFlush {
			t.Errorf("%s: after Flush %q; want %q", c.name, got, c.wantAfterFlush)
		}
		if r.bytes > c.bytesAtMostKept {
			t.Errorf("%s: counts %d bytes; want at most %d", c.name, r.bytes, c.bytesAtMostKept)
		}
	}
}

func TestSince(t *testing.T) {
	r := NewLogRing(2, 9999)
	if _, err := r.Write([]byte("a\nb\nc\n")); err != nil {
		t.Fatal(err)
	}
	for seq, want := range []string{"2:b 3:c", "2:b 3:c", "3:c", "", ""} {
		if got := texts(r.Since(uint64(seq))); got != want {
			t.Errorf("since %d: %q; want %q", seq, got, want)
		}
	}
}

func TestLongLineIsSplit(t *testing.T) {
	r := NewLogRing(10, 1<<20)
	if _, err := r.Write([]byte(strings.Repeat("x", MaxLogLine) + "y\nz\n")); err != nil {
		t.Fatal(err)
	}
	lines := r.Tail(0)
	if len(lines) != 3 || len(lines[0].Text) != MaxLogLine || lines[1].Text != "y" || lines[2].Text != "z" {
		t.Fatalf("%d lines, the last %q", len(lines), lines[len(lines)-1].Text)
	}
}

// TestOtherBytes checks that a ring replaces bytes that are not valid in a proto3 string. If a long
// line is split within a character, both parts have such bytes.
func TestOtherBytes(t *testing.T) {
	r := NewLogRing(10, 1<<20)
	write(t, r, "a\xffb\n"+strings.Repeat("x", MaxLogLine-1)+"é\n")
	lines := r.Tail(0)
	if len(lines) != 3 || lines[0].Text != "a\uFFFDb" || !utf8.ValidString(lines[1].Text) || !utf8.ValidString(lines[2].Text) {
		t.Errorf("%d lines: %s", len(lines), texts(lines))
	}
}

func TestSlowReaderIsToldWhatItMissed(t *testing.T) {
	r := NewLogRing(3, 1<<20)
	write(t, r, "1\n2\n3\n4\n5\n")
	lines, missed, err := r.After(t.Context(), 1)
	if texts(lines) != "3:3 4:4 5:5" || missed != 1 || err != nil {
		t.Fatalf("After(1) = %s, missed %d, %v", texts(lines), missed, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := r.After(ctx, 5); !errors.Is(err, context.Canceled) {
		t.Fatalf("After(5) = %v; want After to wait until its context ends", err)
	}
}

// TestFollow checks that a reader that starts while lines are written gets every later line once,
// in order. The test also gives the race detector concurrent accesses.
func TestFollow(t *testing.T) {
	const last = 2000
	r := NewLogRing(last, 1<<20)
	write(t, r, "old 1\nold 2\n")
	var group sync.WaitGroup
	group.Go(func() {
		for i := 3; i <= last; i++ {
			write(t, r, fmt.Sprintf("line %d\n", i))
		}
	})
	done := errors.New("done")
	expect := uint64(2)
	err := r.Follow(t.Context(), 1, func(line LogLine, missed uint64) error {
		if line.Seq != expect || missed != 0 {
			return fmt.Errorf("line %d (missed %d); want line %d", line.Seq, missed, expect)
		}
		expect++
		if line.Seq == last {
			return done
		}
		return nil
	})
	if !errors.Is(err, done) {
		t.Fatal(err)
	}
	group.Wait()
}

func write(t *testing.T, r *LogRing, text string) {
	if _, err := r.Write([]byte(text)); err != nil {
		t.Error(err)
	}
}
