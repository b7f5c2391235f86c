package transfer

import (
	"errors"
	"fmt"
	"io"
	"time"
)

// ErrSlow is returned for a transfer that is slower than its Pace.
var ErrSlow = errors.New("is too slow")

// Pace is the slowest accepted progress of a transfer. Only the time in which the receiver waits
// for data counts, not the time in which it processes data.
type Pace struct {
	Stall  time.Duration // the longest wait for the next byte
	Window time.Duration // the total time of waits in which MinBytes must arrive
	// MinBytes is the number of bytes that must arrive in each window. Without it, a server that
	// sends a byte now and then would block a transfer for ever.
	MinBytes int64
}

// DefaultPace is the pace for downloads: 16 KiB within 30 seconds, about half a KiB per second.
var DefaultPace = Pace{Stall: 15 * time.Second, Window: 30 * time.Second, MinBytes: 16 << 10}

// Meter compares a transfer with its Pace, window by window.
type Meter struct {
	Pace   Pace
	waited time.Duration // time of the waits in the present window
	got    int64         // bytes in the present window
}

// Add counts the time of a wait, and the bytes that arrived at its end. When a window ends with
// fewer bytes than MinBytes, Add returns ErrSlow.
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

// PacedBody returns a reader of the body of a response. The reader fails with ErrSlow if the body
// is slower than the pace. Then it also calls cancel with the error. cancel has to end a blocked
// Read, for example by the context of the request. Close calls cancel with nil.
func PacedBody(body io.ReadCloser, pace Pace, cancel func(error)) io.ReadCloser {
	return &pacedBody{ReadCloser: body, meter: Meter{Pace: pace}, cancel: cancel}
}

type pacedBody struct {
	io.ReadCloser
	meter  Meter
	cancel func(error)
	slow   error // the error with which the body was canceled, or nil
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
	case fired && !errors.Is(err, io.EOF): // even if data arrived, the request is already canceled
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
