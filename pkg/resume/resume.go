// Package resume reads a remote file to its end, over several connections if necessary. It does not
// verify the content, and the caller opens the connections.
package resume

import (
	"fmt"
	"io"
)

// Open opens a connection that delivers the file from an offset.
type Open func(at int64) (io.ReadCloser, error)

// Reader reads a file of size bytes from offset at. After a broken connection it opens another, as
// long as each connection has delivered at least one byte.
func Reader(at, size int64, open Open) io.Reader {
	return &reader{at: at, size: size, open: open}
}

type reader struct {
	at, size int64
	open     Open
	body     io.ReadCloser // nil without a connection
	brought  bool          // the connection has delivered data
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
				_ = r.body.Close() // the file is complete
			}
			return n, nil // the next call returns an error again
		}
		if err == nil {
			continue
		}
		_ = r.body.Close() // broken
		r.body = nil
		if !r.brought {
			return 0, fmt.Errorf("the connection has brought nothing: %w", err)
		}
	}
	return 0, io.EOF
}
