package transfer

import (
	"errors"
	"fmt"
	"io"
	"time"
)

// ErrSlow is returned for a transfer below its pace.
var ErrSlow = errors.New("is too slow")

// Pace is the slowest accepted progress of a transfer. Only the time in which the receiver waits
// for data counts.
type Pace struct {
	Stall  time.Duration // the longest wait for the next byte
	Window time.Duration // the time of waiting in which MinBytes must arrive
	// MinBytes in each window keep a server that sends a byte now and then from blocking a transfer
	// for ever.
	MinBytes int64
}

// DefaultPace is the pace for downloads: half a KiB per second, a hundredth of a modem.
var DefaultPace = Pace{Stall: 15 * time.Second, Window: 30 * time.Second, MinBytes: 16 << 10}

// Meter measures the pace of a transfer.
type Meter struct {
	Pace   Pace
	waited time.Duration // in the present window
	got    int64
}

// Add counts a wait and the bytes that arrived after it. It returns ErrSlow at the end of a window
// with too few bytes.
func (m *Meter) Add(waited time.Duration, bytes int) error {
	m.waited, m.got = m.waited+waited, m.got+int64(bytes)
	if m.waited < m.Pace.Window {
		return nil
	}
	if m.got < m.Pace.MinBytes {
		return fmt.Errorf("%w: %d bytes within %s", ErrSlow, m.got, m.waited.Round(time.Second))
	}
	m.waited, m.got = 0, 0
	return nil
}

// PacedBody reads the body of an answer, and fails with ErrSlow if the body falls below the pace.
// Then it calls cancel, which ends a blocked Read, for example by the context of the request; Close
// calls it with nil.
func PacedBody(body io.ReadCloser, pace Pace, cancel func(error)) io.ReadCloser {
	return &pacedBody{ReadCloser: body, meter: Meter{Pace: pace}, cancel: cancel}
}

type pacedBody struct {
	io.ReadCloser
	meter  Meter
	cancel func(error)
	slow   error // the body was canceled
}

// Read implements io.Reader.
func (b *pacedBody) Read(p []byte) (int, error) {
	if b.slow != nil {
		return 0, b.slow
	}
	stalled := fmt.Errorf("%w: no data for %s", ErrSlow, b.meter.Pace.Stall)
	timer, began := time.AfterFunc(b.meter.Pace.Stall, func() { b.cancel(stalled) }), time.Now()
	n, err := b.ReadCloser.Read(p)
	switch fired := !timer.Stop(); {
	case fired && !errors.Is(err, io.EOF): // also with data: the body is canceled
		b.slow = stalled
		return n, stalled
	case err != nil:
		return n, err
	}
	if b.slow = b.meter.Add(time.Since(began), n); b.slow != nil {
		b.cancel(b.slow)
	}
	return n, b.slow
}

// Close implements io.Closer.
func (b *pacedBody) Close() error {
	err := b.ReadCloser.Close()
	b.cancel(nil)
	return err
}
