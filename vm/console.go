package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
)

// consoleMemory is the maximum number of bytes of a console in memory. The file has the whole
// console.
const consoleMemory = 4 << 20

// Console is the output of a machine's serial port over all its power-ons. The whole output is in a
// file, and the end of the output is also in memory.
type Console struct {
	file *os.File

	mu      sync.Mutex
	kept    []byte
	start   int64 // position of kept[0] in the output since Start
	changed chan struct{}
}

func openConsole(path string) (*Console, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("console: cannot open: %w", err)
	}
	return &Console{file: file, changed: make(chan struct{})}, nil
}

// Write adds output of the serial port.
func (c *Console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept = append(c.kept, p...)
	if len(c.kept) > consoleMemory {
		drop := len(c.kept) - consoleMemory/2
		c.kept = append(make([]byte, 0, consoleMemory), c.kept[drop:]...)
		c.start += int64(drop)
	}
	close(c.changed)
	c.changed = make(chan struct{})
	if _, err := c.file.Write(p); err != nil {
		return 0, fmt.Errorf("console: cannot write: %w", err)
	}
	return len(p), nil
}

// Path returns the path of the file with the whole console.
func (c *Console) Path() string { return c.file.Name() }

// Offset returns the number of bytes that the console has received since Start. WaitFrom with this
// offset waits for later output.
func (c *Console) Offset() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.start + int64(len(c.kept))
}

// String returns the end of the console: at least its last 2 MiB.
func (c *Console) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.kept)
}

// Tail returns the last n lines.
func (c *Console) Tail(n int) string {
	lines := strings.Split(strings.TrimRight(strings.ReplaceAll(c.String(), "\r", ""), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// WaitFrom waits until a line after offset matches re. It returns the match with its groups and the
// offset after the match. An incomplete line may match, too. It fails if ctx ends first.
func (c *Console) WaitFrom(ctx context.Context, offset int64, re *regexp.Regexp) ([]string, int64, error) {
	for {
		match, next, changed := c.search(offset, re)
		if match != nil {
			return match, next, nil
		}
		offset = next
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, offset, fmt.Errorf("console: %q did not appear: %w", re, context.Cause(ctx))
		}
	}
}

// search looks for a line after offset that matches re. It returns the match with its groups and
// the offset after the match. Without a match, it returns the start of the last line, which may
// still grow, and a channel that the next Write closes.
func (c *Console) search(offset int64, re *regexp.Regexp) ([]string, int64, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := int(max(0, offset-c.start))
	for {
		at = min(at, len(c.kept))
		line, _, finished := bytes.Cut(c.kept[at:], []byte("\n"))
		if m := re.FindSubmatchIndex(line); m != nil {
			match := make([]string, len(m)/2)
			for i := range match {
				if m[2*i] >= 0 {
					match[i] = string(line[m[2*i]:m[2*i+1]])
				}
			}
			return match, c.start + int64(at+m[1]), nil
		}
		if !finished {
			return nil, c.start + int64(at), c.changed
		}
		at += len(line) + 1
	}
}

func (c *Console) close() error {
	if err := c.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("console: cannot close: %w", err)
	}
	return nil
}
