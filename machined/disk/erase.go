package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/orlop-os/orlop/pkg/disk/layout"
)

// erasable is a partition with content to erase.
type erasable interface {
	size() uint64 // bytes
	// tells the disk that the range is unused; the disk may retain every byte
	discard(start, length uint64) error
	zeroOut(start, length uint64) error    // has the kernel or the disk write zeros
	write(p []byte, start uint64) error    // writes p
	flush() error                          // returns after all writes are on the disk
	readBack(p []byte, start uint64) error // reads from the disk, past the page cache
}

const (
	erasePiece = 1 << 20   // bytes per write and read
	eraseStep  = 256 << 20 // bytes per zeroing request to the kernel
	samples    = 512       // pieces of a discarded partition that are read back
)

var errRetained = errors.New("the disk still returns the old data")

// overwriteAll zeroes a whole partition and reads all of it back. It does not trust the disk: a
// disk may report written zeros and retain every byte.
func overwriteAll(ctx context.Context, d erasable) error {
	if d.zeroOut(0, d.size()) == nil && d.flush() == nil {
		if err := checkZeroed(ctx, d, 0, d.size(), erasePiece); err == nil || !errors.Is(err, errRetained) {
			return err
		}
	}
	zeros := make([]byte, erasePiece)
	for at := uint64(0); at < d.size(); at += erasePiece {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := d.write(zeros[:min(erasePiece, d.size()-at)], at); err != nil {
			return err
		}
	}
	if err := d.flush(); err != nil {
		return err
	}
	return checkZeroed(ctx, d, 0, d.size(), erasePiece)
}

// checkZeroed reads the first erasePiece bytes of every step bytes of a range, and the last piece.
// It returns errRetained if a byte is not zero.
func checkZeroed(ctx context.Context, d erasable, start, length, step uint64) error {
	buffer := make([]byte, erasePiece)
	look := func(at uint64) error {
		part := buffer[:min(erasePiece, start+length-at)]
		if err := d.readBack(part, at); err != nil {
			return fmt.Errorf("cannot read back: %w", err)
		}
		if len(bytes.Trim(part, "\x00")) > 0 {
			return errRetained
		}
		return nil
	}
	for at := start; at < start+length; at += step {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := look(at); err != nil {
			return err
		}
	}
	if length > erasePiece {
		return look((start + length - erasePiece) / erasePiece * erasePiece)
	}
	return nil
}

// discardAll discards a partition and reads back samples. If the disk cannot discard, or has
// retained data, discardAll overwrites the partition from its first byte on, and stops at the
// deadline. It returns the result as a sentence for the operator.
func discardAll(ctx context.Context, d erasable, deadline time.Time, now func() time.Time) (string, error) {
	size := d.size()
	step := max(erasePiece, size/samples/erasePiece*erasePiece)
	discarded := d.discard(0, size)
	if discarded == nil {
		err := checkZeroed(ctx, d, 0, size, step)
		if err == nil {
			return "discarded; all samples read back as zeros", nil
		}
		if !errors.Is(err, errRetained) {
			return "", err
		}
	}
	why := "the disk reports that it has discarded the data, but still returns it"
	if discarded != nil {
		why = "the disk cannot discard"
	}
	done := uint64(0)
	for done < size && now().Before(deadline) && ctx.Err() == nil {
		part := min(eraseStep, size-done)
		if err := d.zeroOut(done, part); err != nil {
			break // the result reports the rest
		}
		if err := errors.Join(d.flush(), checkZeroed(ctx, d, done, part, erasePiece*16)); err != nil {
			break
		}
		done += part
	}
	if done == size {
		return why + "; the whole partition was overwritten", nil
	}
	return fmt.Sprintf("%s; the first %s of %s were overwritten within the time limit of a reset, and the rest CAN STILL BE READ: destroy the disk, or overwrite it elsewhere, before you give it away",
		why, layout.FormatSize(done), layout.FormatSize(size)), nil
}
