package transfer

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

const content = "the quick brown fox jumps over the lazy dog"

var errBroken = errors.New("broken")

// breaking returns a connection that delivers size bytes of the content, from offset on, and then
// fails with errBroken.
func breaking(offset int64, size int) io.ReadCloser {
	rest := content[offset:]
	return io.NopCloser(io.MultiReader(strings.NewReader(rest[:min(size, len(rest))]), iotest.ErrReader(errBroken)))
}

func TestResumingReader(t *testing.T) {
	for _, c := range []struct {
		name  string
		at    int64
		after int
		opens int // number of connections
	}{
		{"one connection", 0, 100, 1},
		{"several connections", 0, 10, 5},
		{"from the middle", 20, 10, 3},
		{"no data left", int64(len(content)), 10, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			opens := 0
			got, err := io.ReadAll(iotest.OneByteReader(ResumingReader(c.at, int64(len(content)), func(at int64) (io.ReadCloser, error) {
				opens++
				return breaking(at, c.after), nil
			})))
			if err != nil || string(got) != content[c.at:] || opens != c.opens {
				t.Errorf("%q, %v, %d connections", got, err, opens)
			}
		})
	}
}

// TestGivesUp checks that the reader fails after a connection without data, and after a failed
// attempt to connect. It returns the data that arrived before the failure.
func TestGivesUp(t *testing.T) {
	opens := 0
	got, err := io.ReadAll(ResumingReader(0, int64(len(content)), func(at int64) (io.ReadCloser, error) {
		opens++
		return breaking(at, 10*(2-opens)), nil
	}))
	if !errors.Is(err, errBroken) || string(got) != content[:10] || opens != 2 {
		t.Errorf("%q, %v, %d connections", got, err, opens)
	}
	_, err = io.ReadAll(ResumingReader(0, 1, func(int64) (io.ReadCloser, error) { return nil, errBroken }))
	if !errors.Is(err, errBroken) {
		t.Errorf("an attempt to connect that fails: %v", err)
	}
}

// TestShortConnections checks that the reader fails if each connection delivers little data. It
// does not fail if some connections deliver more.
func TestShortConnections(t *testing.T) {
	const size = 4 * minProgress
	for _, c := range []struct {
		name  string
		after func(open int) int64
		want  int // maximum number of connections
		whole bool
	}{
		{"a byte per connection", func(int) int64 { return 1 }, maxShort, false},
		{"one long connection of maxShort", func(open int) int64 { return map[bool]int64{true: minProgress, false: 1}[open%maxShort == 0] }, 4 * maxShort, true},
	} {
		opens := 0
		got, err := io.ReadAll(ResumingReader(0, size, func(at int64) (io.ReadCloser, error) {
			opens++
			return io.NopCloser(io.MultiReader(io.LimitReader(zeros{}, min(c.after(opens), size-at)), iotest.ErrReader(errBroken))), nil
		}))
		if whole := err == nil && len(got) == size; whole != c.whole || opens > c.want || err != nil && !strings.Contains(err.Error(), "connections in a row delivered less than 64 KiB each: broken") {
			t.Errorf("%s: %d bytes, %v, %d connections", c.name, len(got), err, opens)
		}
	}
}

// TestEarlyEnd checks that Read returns io.ErrUnexpectedEOF and not io.EOF if a connection ends too
// early. A caller that tests for io.EOF would take the file for complete.
func TestEarlyEnd(t *testing.T) {
	r := ResumingReader(0, int64(len(content)), func(int64) (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("")), nil })
	if _, err := r.Read(make([]byte, 1)); errors.Is(err, io.EOF) || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%v, want %v", err, io.ErrUnexpectedEOF)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// TestTooMuch checks that the reader ignores data beyond the size of the file.
func TestTooMuch(t *testing.T) {
	got, err := io.ReadAll(ResumingReader(0, 3, func(int64) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader([]byte(content))), nil }))
	if err != nil || string(got) != content[:3] {
		t.Errorf("%q, %v", got, err)
	}
}
