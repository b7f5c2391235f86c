// Package kubeaudit links the lines of the audit log of Kubernetes in a chain, in which a changed
// or removed line is detectable (Writer). It syncs the files (Log), and reads the synced lines by
// number (Reader). Package audit does the same for the audit log of the machine.
//
// Each line is an event of Kubernetes (audit.k8s.io/v1) with three more fields: its number, the
// SHA-256 of the previous line, and the name of the record. Programs for audit logs of Kubernetes
// ignore these fields, so they can read the lines. The newest lines are in audit.log; older lines
// are in files beside audit.log. The API server rotates, compresses and deletes these files
// (lumberjack). audit.Chain verifies the lines.
//
// The package does not append to the files itself, and does not send lines to receivers.
package kubeaudit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Record is the name of the record in each line.
const Record = "kubernetes"

// File is the name of the present file in the directory.
const File = "audit.log"

// Writer adds the fields of the chain to events. It is safe for concurrent use.
type Writer struct {
	mu     sync.Mutex
	out    io.Writer
	number uint64 // number of the last line
	digest string // digest of the last line
	torn   bool   // the file can end within a line
}

// NewWriter returns a writer that continues the chain in a directory. Each write to out must append
// to File in this directory.
func NewWriter(dir string, out io.Writer) (*Writer, error) {
	end, err := findEnd(dir)
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	w := &Writer{out: out, number: end.number, torn: end.torn}
	if end.number > 0 {
		w.digest = digestOf(end.line)
	}
	return w, nil
}

// Write writes an event: a JSON object on one line, with the newline. After a failure the next
// event begins on a new line.
func (w *Writer) Write(event []byte) (int, error) {
	object, ok := bytes.CutPrefix(event, []byte("{"))
	text, ended := bytes.CutSuffix(object, []byte("\n"))
	if !ok || !ended || bytes.IndexByte(text, '\n') >= 0 {
		return 0, errors.New("audit: the event is not one line of JSON")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	line := fmt.Appendf(nil, `{"number":%d,`, w.number+1)
	if w.digest != "" {
		line = fmt.Appendf(line, `"before":%q,`, w.digest)
	}
	line = append(fmt.Appendf(line, `"record":%q,`, Record), text...)
	out := append(bytes.Clone(line), '\n')
	if w.torn {
		out = append([]byte("\n"), out...)
	}
	if _, err := w.out.Write(out); err != nil {
		w.torn = true // the file can contain a part of the line
		return 0, err
	}
	w.number, w.digest, w.torn = w.number+1, digestOf(line), false
	return len(event), nil
}

func digestOf(line []byte) string {
	sum := sha256.Sum256(line)
	return hex.EncodeToString(sum[:])
}
