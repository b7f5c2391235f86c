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

// Device is the device file of the kernel log.
const Device = "/dev/kmsg"

// maxRecord is the maximum size of a record (CONSOLE_EXT_LOG_MAX, kernel/printk). A read with a
// smaller buffer can fail.
const maxRecord = 8192

// Tail returns the last n records of the log, the oldest first; all records if n is 0.
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
		// Read directly from the descriptor: at the end of the log, Go's Read would wait for more
		// records, but Tail must return.
		if err := raw.Read(func(fd uintptr) bool { size, failure = unix.Read(int(fd), buffer); return true }); err != nil {
			return nil, fmt.Errorf("kernel log: cannot read: %w", err)
		}
		switch {
		case errors.Is(failure, unix.EAGAIN):
			return records, nil
		case errors.Is(failure, unix.EPIPE), errors.Is(failure, unix.EINTR):
			continue // overwritten meanwhile: the next read returns the oldest remaining record
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

// Follow calls the function each for the last tail records (for all records if tail is 0) and then
// for every new record. It returns the error of ctx when ctx ends, or the error of the function. If
// the kernel drops records before Follow can read them, these records are missing, and Record.Seq
// shows the gap.
func Follow(ctx context.Context, tail int, each func(Record) error) error {
	f, err := open()
	if err != nil {
		return err
	}
	defer f.Close()
	defer context.AfterFunc(ctx, func() {
		// This ends the read below. SetReadDeadline cannot fail for a file that supports polling.
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

// open opens the log at its beginning. The file is non-blocking. So Go waits in its poller, and
// SetReadDeadline can end the wait.
func open() (*os.File, error) {
	f, err := os.OpenFile(Device, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("kernel log: cannot open: %w", err)
	}
	return f, nil
}
