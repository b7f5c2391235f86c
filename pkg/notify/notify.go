// Package notify is how a supervised process tells machined that it, or a component inside it, is
// ready.
//
// The process inherits the write end of a pipe, by custom as file descriptor 3, and finds its
// number in the environment variable ORLOP_NOTIFY_FD. It writes one JSON object per line:
//
//	{"component":"etcd","ready":true,"detail":"serving on /run/…/etcd.sock"}
//
// A line with an empty component speaks for the process as a whole. The reader (pkg/supervise)
// takes a process for ready when at least one component was announced and all that were announced
// are ready. A component may become unready again by saying so; it is forgotten when the process
// ends.
//
// The package knows the lines and nothing else: no states, no deadlines, no processes.
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

// Env names the environment variable with the number of the file descriptor to write to.
const Env = "ORLOP_NOTIFY_FD"

// MaxLine is the greatest length of one line in bytes, with its newline: PIPE_BUF, up to which a
// write to a pipe is never mixed with another's (pipe(7)).
const MaxLine = 4096

// maxDetail leaves room for JSON's escapes (at most 6 bytes for one) and the other fields.
const maxDetail = 500

// Message is one line.
type Message struct {
	// "etcd", "kube-apiserver", …; empty for the process itself; at most 64 bytes
	Component string `json:"component"`
	Ready     bool   `json:"ready"` // whether it can do its work now
	// one line for people: what it does, or what it waits for
	Detail string `json:"detail,omitempty"`
}

// Writer sends messages. A nil Writer sends nothing: a process that is not supervised need not
// care.
type Writer struct {
	mu sync.Mutex
	w  io.Writer
}

// NewWriter returns a Writer that sends to w, one Write for each message.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Send tells that a component is ready or is not. A detail longer than 500 bytes is cut, and line
// breaks in it become spaces. An error means that machined does not read any more; the caller may
// go on all the same.
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

// Read calls each for every message that r delivers, until r ends (then it returns nil) or fails. A
// line that is not a message is passed to bad with the reason and skipped: a confused process must
// not look like a dead one.
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
