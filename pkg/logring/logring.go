// Package logring keeps the last lines that a service wrote, in memory, bounded by lines and by
// bytes.
//
// The writer never waits for a reader: when the ring is full the oldest lines go, and a reader that
// was too slow is told how many it missed. The package deliberately writes nothing to disk and
// interprets no line.
package logring

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"time"
)

// MaxLine is the length in bytes up to which a line is kept in one piece; the rest continues as a
// line of its own.
const MaxLine = 8192

// lineCost is added to a line's length when bytes are counted: the size of a Line in memory.
const lineCost = 48

// Line is one line of text without its newline.
type Line struct {
	Seq  uint64    // grows by one with each line; the first has 1
	Time time.Time // when the line was complete
	Text string
}

// Ring holds the last lines. Make it with New. All methods may be called from any goroutine.
type Ring struct {
	maxLines, maxBytes int

	mu      sync.Mutex
	lines   []Line // oldest first
	bytes   int
	next    uint64        // Seq of the next line
	partial []byte        // text since the last newline
	changed chan struct{} // closed by the next line, then replaced
}

// New returns an empty ring that keeps at most maxLines lines and maxBytes bytes of text (with a
// little added for each line). Both are at least 1.
func New(maxLines, maxBytes int) *Ring {
	return &Ring{maxLines: max(maxLines, 1), maxBytes: max(maxBytes, 1), next: 1, changed: make(chan struct{})}
}

// Write adds text and stamps each line that it completes with now. It never blocks and never fails,
// and so is an io.Writer that can stand behind a process's output.
func (r *Ring) Write(text []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	size, before := len(text), r.next
	for len(text) > 0 {
		end := bytes.IndexByte(text, '\n')
		take := text
		if end >= 0 {
			take = text[:end]
		}
		if room := MaxLine - len(r.partial); len(take) > room {
			take, end = take[:room], -1
		}
		r.partial = append(r.partial, take...)
		text = text[len(take):]
		if end >= 0 {
			text = text[1:]
		}
		if end >= 0 || len(r.partial) == MaxLine {
			r.add()
		}
	}
	if r.next != before {
		r.wake()
	}
	return size, nil
}

// Flush makes a line of what was written after the last newline, if anything. Call it when a
// process has ended.
func (r *Ring) Flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.partial) > 0 {
		r.add()
		r.wake()
	}
}

// add turns the partial text into a line and drops the oldest while there is too much. The lock is
// held.
func (r *Ring) add() {
	// What is no UTF-8, or was cut within a character, has no place in the messages that carry
	// lines (proto3, string).
	text := strings.ToValidUTF8(string(bytes.TrimSuffix(r.partial, []byte("\r"))), "\uFFFD")
	r.partial = r.partial[:0]
	r.lines = append(r.lines, Line{Seq: r.next, Time: time.Now(), Text: text})
	r.next++
	r.bytes += len(text) + lineCost
	drop := 0
	for len(r.lines)-drop > 1 && (len(r.lines)-drop > r.maxLines || r.bytes > r.maxBytes) {
		r.bytes -= len(r.lines[drop].Text) + lineCost
		r.lines[drop].Text = ""
		drop++
	}
	r.lines = r.lines[drop:]
}

func (r *Ring) wake() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// Newest is the Seq of the last line, also of one that is not kept any more; 0 before there is one.
func (r *Ring) Newest() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.next - 1
}

// Tail returns the last n lines that are kept, oldest first; all of them when n is 0.
func (r *Ring) Tail(n int) []Line {
	r.mu.Lock()
	defer r.mu.Unlock()
	from := 0
	if n > 0 && n < len(r.lines) {
		from = len(r.lines) - n
	}
	return append([]Line(nil), r.lines[from:]...)
}

// Since returns the lines with a greater Seq than seq that are kept, oldest first.
func (r *Ring) Since(seq uint64) []Line {
	lines, _, _ := r.after(seq)
	return lines
}

// After waits until there is a line with a greater Seq than seq and returns all such lines that are
// still kept, with the number of lines between seq and the first of them that are not. The only
// error is the context's.
func (r *Ring) After(ctx context.Context, seq uint64) (lines []Line, missed uint64, err error) {
	for {
		lines, missed, changed := r.after(seq)
		if len(lines) > 0 {
			return lines, missed, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		}
	}
}

func (r *Ring) after(seq uint64) ([]Line, uint64, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.lines) == 0 || seq >= r.next-1 {
		return nil, 0, r.changed
	}
	first := r.lines[0].Seq
	if seq+1 < first {
		return append([]Line(nil), r.lines...), first - seq - 1, r.changed
	}
	return append([]Line(nil), r.lines[seq+1-first:]...), 0, r.changed
}

// Follow calls each for the last tail lines that are kept (all when tail is 0) and then for every
// new one, until the context ends (its error is returned) or each fails. When lines were lost
// because each was slower than the writer, missed says how many stood before this line.
func (r *Ring) Follow(ctx context.Context, tail int, each func(line Line, missed uint64) error) error {
	r.mu.Lock()
	last := r.next - 1
	r.mu.Unlock()
	for _, line := range r.Tail(tail) {
		if err := each(line, 0); err != nil {
			return err
		}
		last = line.Seq
	}
	for {
		lines, missed, err := r.After(ctx, last)
		if err != nil {
			return err
		}
		for _, line := range lines {
			if err := each(line, missed); err != nil {
				return err
			}
			last, missed = line.Seq, 0
		}
	}
}
