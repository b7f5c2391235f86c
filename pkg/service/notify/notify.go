// Package notify defines how a supervised process reports to machined that the process, or a
// component inside it, is ready.
//
// The process inherits the write end of a pipe, usually as file descriptor 3, and reads its number
// from the environment variable ORLOP_NOTIFY_FD. It writes a JSON object per line:
//
//	{"component":"etcd","ready":true,"detail":"serving on /run/…/etcd.sock"}
//
// A line with an empty component describes the process as a whole. The reader (pkg/supervise)
// regards a process as ready when it has announced a component and all announced components are
// ready. A component can report that it is unready again. The reader forgets all components when
// the process exits.
//
// The package contains only the lines: no states, no deadlines, no processes.
package notify

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
)

// Env is the environment variable with the number of the file descriptor for messages.
const Env = "ORLOP_NOTIFY_FD"

// MaxLine is the maximum length of a line in bytes, newline included. It is PIPE_BUF: the kernel
// never mixes a write of this length with other writes to the pipe (pipe(7)).
const MaxLine = 4096

// maxDetail leaves room for JSON's escapes (at most 6 bytes per byte) and the other fields.
const maxDetail = 500

// Message is the content of a line.
type Message struct {
	// "etcd", "kube-apiserver", …; empty for the process itself; at most 64 bytes
	Component string `json:"component"`
	Ready     bool   `json:"ready"` // whether it can do its work now
	// a line for people: its present work, or the reason why it waits
	Detail string `json:"detail,omitempty"`
}

// Writer sends messages. A nil Writer sends nothing, so an unsupervised process needs no special
// case.
type Writer struct {
	mu sync.Mutex
	w  io.Writer
}

// NewWriter returns a Writer that sends each message to w in a single Write.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Send reports whether a component is ready. It cuts a detail after 500 bytes and replaces line
// breaks by spaces. An error means that machined no longer reads; the caller may continue all the
// same.
func (w *Writer) Send(component string, ready bool, detail string) error {
	if w == nil {
		return nil
	}
	if len(component) > 64 {
		return fmt.Errorf("notify: cannot send: component %q is longer than 64 bytes", component)
	}
	line, err := json.Marshal(Message{Component: component, Ready: ready, Detail: oneLine(detail)})
	if err != nil {
		return fmt.Errorf("notify: cannot encode message of %q: %w", component, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := w.w.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("notify: cannot send message of %q: %w", component, err)
	}
	return nil
}

func oneLine(s string) string {
	if len(s) > maxDetail {
		s = strings.ToValidUTF8(s[:maxDetail], "")
	}
	return strings.Join(strings.Fields(s), " ")
}

// Read calls each for every message from r, until r ends (then it returns nil) or fails. It passes
// an invalid line to bad with the reason and skips the line, because a process with a bug must not
// look like a dead process.
func Read(r io.Reader, each func(Message), bad func(line string, err error)) error {
	lines := bufio.NewReaderSize(r, MaxLine)
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			bad(string(line[:64])+"…", fmt.Errorf("line is longer than %d bytes", MaxLine))
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = lines.ReadSlice('\n')
			}
			line = nil
		}
		if text := strings.TrimSpace(string(line)); text != "" {
			var m Message
			if problem := json.Unmarshal([]byte(text), &m); problem != nil {
				bad(text, problem)
			} else {
				each(m)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("notify: cannot read: %w", err)
		}
	}
}
