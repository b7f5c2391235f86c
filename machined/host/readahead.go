package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// ReadAhead reads files to their end, in sequence, and discards the content; the kernel caches the
// pages, which stay reclaimable. failed receives an error of a file, and the next file follows.
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
