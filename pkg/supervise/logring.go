package supervise

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"time"
)

// MaxLogLine is the maximum length of a line in bytes. A longer line is split into several lines.
const MaxLogLine = 8192

// lineCost is the size of a LogLine in memory without its text, in bytes. Each line in a ring
// counts as its text and lineCost bytes.
const lineCost = 48

// LogLine is a line of text without its newline.
type LogLine struct {
	Seq  uint64    // increases by 1 with each line; the first line has 1
	Time time.Time // when the line was complete
	Text string
}

// LogRing stores the last lines of a service's output in memory, up to a maximum number of lines
// and a maximum number of bytes. NewLogRing creates a ring. All methods are safe for concurrent
// use.
//
// The writer never waits for a reader. A full ring drops its oldest lines, and a reader that was
// too slow gets the number of lines that it has missed. A ring writes nothing to disk and does not
// parse the lines.
type LogRing struct {
	maxLines, maxBytes int

	mu      sync.Mutex
	lines   []LogLine     // oldest first
	bytes   int           // of all lines, each with lineCost
	next    uint64        // Seq of the next line
	partial []byte        // text since the last newline
	changed chan struct{} // closed by the next line, then replaced
}

// NewLogRing returns an empty ring for at most maxLines lines and maxBytes bytes. Each line counts
// as its text and lineCost bytes. A limit below 1 is raised to 1. The ring always contains the last
// line, even if that line alone exceeds maxBytes.
func NewLogRing(maxLines, maxBytes int) *LogRing {
	return &LogRing{maxLines: max(maxLines, 1), maxBytes: max(maxBytes, 1), next: 1, changed: make(chan struct{})}
}

// Write adds text to the ring. The time of each line is the time at which it was complete. Write
// never blocks and never fails, so a ring can be the io.Writer behind the output of a process.
func (r *LogRing) Write(text []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	size, before := len(text), r.next
	for len(text) > 0 {
		end := bytes.IndexByte(text, '\n')
		take := text
		if end >= 0 {
			take = text[:end]
		}
		if room := MaxLogLine - len(r.partial); len(take) > room {
			take, end = take[:room], -1
		}
		r.partial = append(r.partial, take...)
		text = text[len(take):]
		if end >= 0 {
			text = text[1:]
		}
		if end >= 0 || len(r.partial) == MaxLogLine {
			r.add()
		}
	}
	if r.next != before {
		r.notify()
	}
	return size, nil
}

// Flush adds the text after the last newline as a line, if there is any text. The manager calls it
// when the output of a process ends.
func (r *LogRing) Flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.partial) > 0 {
		r.add()
		r.notify()
	}
}

// add adds the partial text as a line, and drops the oldest lines beyond the limits. The caller
// holds the lock.
func (r *LogRing) add() {
	// The API sends the line as a proto3 string, which must be valid UTF-8. The output can contain
	// other bytes, and the limit of a line can cut a character.
	text := strings.ToValidUTF8(string(bytes.TrimSuffix(r.partial, []byte("\r"))), "\uFFFD")
	r.partial = r.partial[:0]
	r.lines = append(r.lines, LogLine{Seq: r.next, Time: time.Now(), Text: text})
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

func (r *LogRing) notify() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// Newest returns the Seq of the last line that was written, even if the ring has dropped it. It
// returns 0 before the first line.
func (r *LogRing) Newest() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.next - 1
}

// Tail returns the last n stored lines, oldest first, or all stored lines if n is 0.
func (r *LogRing) Tail(n int) []LogLine {
	r.mu.Lock()
	defer r.mu.Unlock()
	from := 0
	if n > 0 && n < len(r.lines) {
		from = len(r.lines) - n
	}
	return append([]LogLine(nil), r.lines[from:]...)
}

// Since returns the stored lines with a Seq greater than seq, oldest first.
func (r *LogRing) Since(seq uint64) []LogLine {
	lines, _, _ := r.after(seq)
	return lines
}

// After waits until there is a line with a Seq greater than seq, and returns all stored lines with
// such a Seq, oldest first. missed is the number of dropped lines between the line with the Seq seq
// and the first returned line. If the context ends first, After returns the error of the context.
// It has no other error.
func (r *LogRing) After(ctx context.Context, seq uint64) (lines []LogLine, missed uint64, err error) {
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

// after returns the same lines and number as After, but does not wait. It also returns the channel
// that is closed when the next line is added.
func (r *LogRing) after(seq uint64) ([]LogLine, uint64, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.lines) == 0 || seq >= r.next-1 {
		return nil, 0, r.changed
	}
	first := r.lines[0].Seq
	if seq+1 < first {
		return append([]LogLine(nil), r.lines...), first - seq - 1, r.changed
	}
	return append([]LogLine(nil), r.lines[seq+1-first:]...), 0, r.changed
}

// Follow calls send(line, missed) for the last n stored lines (all stored lines if n is 0), and
// then for every new line. missed is the number of lines directly before this line that the ring
// has dropped, because send was slower than the writer. Follow returns the error of send if send
// fails, or the error of the context when the context ends.
func (r *LogRing) Follow(ctx context.Context, n int, send func(line LogLine, missed uint64) error) error {
	last := r.Newest()
	for _, line := range r.Tail(n) {
		if err := send(line, 0); err != nil {
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
			if err := send(line, missed); err != nil {
				return err
			}
			last, missed = line.Seq, 0
		}
	}
}
