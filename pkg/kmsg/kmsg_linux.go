package kmsg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Device is the kernel's log.
const Device = "/dev/kmsg"

// maxRecord is CONSOLE_EXT_LOG_MAX (kernel/printk): a read with a smaller buffer fails.
const maxRecord = 8192

// Tail returns the last n records that the kernel still has, oldest first; all of them when n is 0.
func Tail(n int) ([]Record, error) {
	f, err := open()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("kernel log: cannot read: %w", err)
	}
	var records []Record
	buffer := make([]byte, maxRecord)
	for {
		var size int
		var failure error
		// Straight from the descriptor: Go's Read would wait for more at the end, and the end is
		// what ends us.
		if err := raw.Read(func(fd uintptr) bool { size, failure = unix.Read(int(fd), buffer); return true }); err != nil {
			return nil, fmt.Errorf("kernel log: cannot read: %w", err)
		}
		switch {
		case errors.Is(failure, unix.EAGAIN):
			return records, nil
		case errors.Is(failure, unix.EPIPE), errors.Is(failure, unix.EINTR):
			continue // overwritten under our hands: the next read gives the oldest that is left
		case failure != nil:
			return nil, fmt.Errorf("kernel log: cannot read: %w", failure)
		}
		if r, err := Parse(string(buffer[:size])); err == nil {
			records = append(records, r)
			if n > 0 && len(records) > n {
				records = records[1:]
			}
		}
	}
}

// Follow calls each for the last tail records (all that the kernel has when tail is 0) and then for
// every new one, until the context ends (its error is returned) or each fails. Records that the
// kernel dropped before they could be read are missing; their numbers (Record.Seq) show it.
func Follow(ctx context.Context, tail int, each func(Record) error) error {
	f, err := open()
	if err != nil {
		return err
	}
	defer f.Close()
	defer context.AfterFunc(ctx, func() {
		// ends the read below; it cannot fail on a file that can be polled
		_ = f.SetReadDeadline(time.Unix(1, 0))
	})()
	from := uint64(0)
	if tail > 0 {
		records, err := Tail(tail)
		if err != nil {
			return err
		}
		if len(records) > 0 {
			from = records[0].Seq
		}
	}
	buffer := make([]byte, maxRecord)
	for {
		n, err := f.Read(buffer)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, syscall.EPIPE):
			continue
		case err != nil:
			return fmt.Errorf("kernel log: cannot read: %w", err)
		}
		r, err := Parse(string(buffer[:n]))
		if err != nil || r.Seq < from {
			continue
		}
		if err := each(r); err != nil {
			return err
		}
	}
}

// open opens the log at its beginning. Not blocking, so that Go waits for it in its poller and can
// be interrupted.
func open() (*os.File, error) {
	f, err := os.OpenFile(Device, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("kernel log: cannot open: %w", err)
	}
	return f, nil
}
