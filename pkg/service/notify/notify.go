// Package notify is the protocol by which a supervised process reports to machined that the
// process, or a component of the process, is ready.
//
// The process inherits the write end of a pipe, usually as descriptor 3. The environment variable
// ORLOP_NOTIFY_FD has the number of the descriptor. The process writes a JSON object per line:
//
//	{"component":"etcd","ready":true,"detail":"serving on /run/…/etcd.sock"}
//
// A line with an empty component describes the whole process. The reader (pkg/supervise) regards a
// process as ready when the process has reported at least one component, and all reported
// components are ready. A component can become unready again. The reader forgets all components
// when the process exits.
//
// The package contains only the protocol. It manages no states, deadlines or processes.
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

// Env is the environment variable with the descriptor number of the pipe.
const Env = "ORLOP_NOTIFY_FD"

// MaxLine is the maximum length of a line in bytes, with its newline. It is PIPE_BUF: the kernel
// writes up to this length to a pipe atomically, so lines of several writers do not mix (pipe(7)).
const MaxLine = 4096

// maxDetail is the maximum length of a detail in bytes. It leaves space in MaxLine for the other
// fields, because JSON may escape each byte by 6 bytes.
const maxDetail = 500

// Message is the content of a line.
type Message struct {
	// name of the component, at most 64 bytes: "etcd", "kube-apiserver"; empty for the process
	// itself
	Component string `json:"component"`
	Ready     bool   `json:"ready"` // whether it is ready
	// a line for the operator: what the component does at present, or why it waits
	Detail string `json:"detail,omitempty"`
}

// Writer sends messages. A nil Writer sends nothing, so the code also works in a process without
// supervision.
type Writer struct {
	mu sync.Mutex
	w  io.Writer
}

// NewWriter returns a Writer that sends each message to w in a single Write.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Send sends whether a component is ready. It cuts the detail after 500 bytes, and replaces line
// breaks by blanks. It fails if the name of the component is too long, or if machined has closed
// the pipe. A process can continue after an error.
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

// Read reads messages from r, and calls the function each for every message. For an invalid line,
// it calls the function bad with the line and the reason, and continues, because a process that
// writes invalid lines still runs. Read returns nil at the end of r, or the error of r.
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
