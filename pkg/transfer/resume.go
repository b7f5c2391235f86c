// Package transfer helps with long transfers. It continues a download after a broken connection,
// ends a transfer that stalls, and limits the rate of progress reports.
package transfer

import (
	"errors"
	"fmt"
	"io"
)

// OpenFunc opens a connection that delivers the file from the offset `at`, in bytes, to its end.
type OpenFunc func(at int64) (io.ReadCloser, error)

// ResumingReader returns a reader of a remote file of `size` bytes, from the offset `at` to the
// end. The reader does not verify the content. When a connection breaks, it opens the next
// connection. It fails if a connection cannot be opened or delivers no data, or if maxShort
// connections in a row each deliver less than minProgress bytes.
func ResumingReader(at, size int64, open OpenFunc) io.Reader {
	return &resumingReader{at: at, size: size, open: open}
}

// maxShort is the number of connections in a row that end the transfer if each of them delivers
// less than minProgress bytes. Without this limit, a server that breaks each connection after a
// byte would occupy the reader for ever.
const (
	maxShort    = 10
	minProgress = 64 << 10
)

type resumingReader struct {
	at, size int64
	open     OpenFunc
	body     io.ReadCloser // nil without a connection
	brought  int64         // bytes that the present connection has delivered
	short    int           // connections in a row that have delivered less than minProgress
}

func (r *resumingReader) Read(p []byte) (int, error) {
	for r.at < r.size {
		if r.body == nil {
			body, err := r.open(r.at)
			if err != nil {
				return 0, err
			}
			r.body, r.brought = body, 0
		}
		n, err := r.body.Read(p[:min(int64(len(p)), r.size-r.at)])
		if n > 0 {
			r.at, r.brought = r.at+int64(n), r.brought+int64(n)
			if r.at == r.size {
				_ = r.body.Close() // the file is complete
			}
			return n, nil // a broken connection returns its error again in the next call
		}
		if err == nil {
			continue
		}
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF // io.EOF means to callers that the file is complete
		}
		_ = r.body.Close() // broken
		r.body = nil
		if r.short++; r.brought >= minProgress {
			r.short = 0
		}
		switch {
		case r.brought == 0:
			return 0, fmt.Errorf("the connection delivered no data: %w", err)
		case r.short >= maxShort:
			return 0, fmt.Errorf("%d connections in a row delivered less than %d KiB each: %w", r.short, minProgress>>10, err)
		}
	}
	return 0, io.EOF
}
