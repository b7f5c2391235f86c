package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// ReadAhead reads files to their end, one after the other, and discards the content, so the content
// is then in the page cache of the kernel. The kernel can reclaim these pages. If a file cannot be
// read, ReadAhead calls failed with the error, and continues with the next file.
func ReadAhead(ctx context.Context, files []string, failed func(error)) {
	for _, file := range files {
		if err := readThrough(ctx, file); err != nil {
			failed(fmt.Errorf("programs: cannot read ahead: %w", err))
		}
	}
}

func readThrough(ctx context.Context, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	buffer := make([]byte, 128<<10)
	for ctx.Err() == nil {
		if _, err := f.Read(buffer); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return nil
}
