// Package resume reads a file that is somewhere else to its end, over as many connections as that
// takes. What it reads is not checked, and how a connection is made is the caller's.
package resume

import (
	"fmt"
	"io"
)

// Open makes a connection that brings the file from a byte on.
type Open func(at int64) (io.ReadCloser, error)

// Reader reads a file of size bytes from byte at on. Where a connection breaks it makes another one
// and goes on, as long as each of them has brought something.
func Reader(at, size int64, open Open) io.Reader {
	return &reader{at: at, size: size, open: open}
}

type reader struct {
	at, size int64
	open     Open
	body     io.ReadCloser // nil: there is no connection
	brought  bool          // the connection has brought something
}

func (r *reader) Read(p []byte) (int, error) {
	for r.at < r.size {
		if r.body == nil {
			body, err := r.open(r.at)
			if err != nil {
				return 0, err
			}
			r.body, r.brought = body, false
		}
		n, err := r.body.Read(p[:min(int64(len(p)), r.size-r.at)])
		if n > 0 {
			r.at, r.brought = r.at+int64(n), true
			if r.at == r.size {
				_ = r.body.Close() // everything is there
			}
			return n, nil // an error comes again with the next call
		}
		if err == nil {
			continue
		}
		_ = r.body.Close() // it is broken
		r.body = nil
		if !r.brought {
			return 0, fmt.Errorf("the connection has brought nothing: %w", err)
		}
	}
	return 0, io.EOF
}
