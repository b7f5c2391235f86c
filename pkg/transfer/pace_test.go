package transfer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// drip is a body that delivers size bytes after each delay, until left is 0 or its context ends.
type drip struct {
	ctx   context.Context
	delay time.Duration
	size  int
	left  int // remaining bytes
}

func (d *drip) Read(p []byte) (int, error) {
	if d.left == 0 {
		return 0, io.EOF
	}
	select {
	case <-time.After(d.delay):
	case <-d.ctx.Done():
		return 0, d.ctx.Err()
	}
	n := min(d.size, d.left, len(p))
	d.left -= n
	return copy(p, bytes.Repeat([]byte("x"), n)), nil
}

func (d *drip) Close() error { return nil }

// TestPacedBody checks that a body that stalls, or delivers few bytes, ends with an error within a
// limited time. A slow body above the pace is read completely.
func TestPacedBody(t *testing.T) {
	for _, c := range []struct {
		name       string
		delay      time.Duration
		size, left int
		want       string
		within     time.Duration // maximum duration of the read
	}{
		{"a byte each 14 s", 14 * time.Second, 1, 1 << 30, "is too slow: 3 bytes within 42s", 45 * time.Second},
		{"a byte each second", time.Second, 1, 1 << 30, "is too slow: 30 bytes within 30s", 31 * time.Second},
		{"no data", time.Hour, 1, 1, "is too slow: no data for 15s", 16 * time.Second},
		{"slow, and above the pace", time.Second, 1 << 10, 1 << 20, "", 18 * time.Minute},
		{"short", 14 * time.Second, 1, 2, "", 29 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			began, source := time.Now(), &drip{ctx, c.delay, c.size, c.left}
			body := PacedBody(source, DefaultPace, cancel)
			n, err := io.Copy(io.Discard, body)
			switch took := time.Since(began); {
			case c.want == "" && (err != nil || n != int64(c.left)):
				t.Errorf("%s: %d bytes, %v", c.name, n, err)
			case c.want != "" && (!errors.Is(err, ErrSlow) || err.Error() != c.want || context.Cause(ctx) == nil):
				t.Errorf("%s: %v, the request was canceled with %v; want %s", c.name, err, context.Cause(ctx), c.want)
			case took > c.within:
				t.Errorf("%s: took %s", c.name, took)
			}
			if _, again := body.Read(make([]byte, 1)); c.want != "" && !errors.Is(again, ErrSlow) {
				t.Errorf("%s: a second Read returned %v, want ErrSlow", c.name, again)
			}
			if err := body.Close(); err != nil || ctx.Err() == nil {
				t.Errorf("%s: Close returned %v, the error of the request's context is %v", c.name, err, ctx.Err())
			}
		})
	}
}

// TestPacedReceiver checks that PacedBody does not count the time in which the receiver processes
// data.
func TestPacedReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body := PacedBody(io.NopCloser(strings.NewReader("abc")), DefaultPace, func(error) {})
		for range 3 {
			if _, err := body.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
		}
	})
}

// lateBody is a body that delivers a byte when its request is canceled.
type lateBody struct{ canceled chan struct{} }

func (b lateBody) Read(p []byte) (int, error) {
	<-b.canceled
	p[0] = 'x'
	return 1, nil
}

func (lateBody) Close() error { return nil }

// TestLateData checks that Read returns ErrSlow, the reason of the cancellation, even if data
// arrive at the same time. If Read returned the data, the next Read would only return the error of
// the canceled request.
func TestLateData(t *testing.T) {
	late := lateBody{make(chan struct{})}
	body := PacedBody(late, Pace{Stall: time.Millisecond, Window: time.Hour}, func(error) { close(late.canceled) })
	for range 2 {
		if _, err := body.Read(make([]byte, 8)); !errors.Is(err, ErrSlow) {
			t.Fatalf("%v, want %v", err, ErrSlow)
		}
	}
}
