package transfer

import (
	"errors"
	"time"

	"github.com/orlop-os/orlop/pkg/panics"
)

// StallTimeout is the time without data after which a machine ends a transfer with a client. It is
// shorter than the time in which the client notices a lost connection (pkg/client). So when the
// client repeats its call, the machine has already ended the former call.
const StallTimeout = 20 * time.Second

// The errors of Watch when it ends a transfer.
var (
	ErrStalled = errors.New("the transfer has stalled")
	ErrTooLong = errors.New("the transfer took too long")
	ErrStopped = errors.New("the machine is shutting down")
)

// Watch runs the function move and returns its error. move calls moved after each piece of data.
// Watch returns before move ends in three cases: with ErrStalled if move does not call moved for
// StallTimeout, with ErrTooLong after the time `most` (0 means no limit), and with ErrStopped when
// the channel `stopped` is closed. move may then still be blocked in the stream of a call. When the
// caller of Watch returns from this call, the stream ends, and so does move. where is the name of
// the transfer in the report of a panic.
func Watch(where string, stopped <-chan struct{}, most time.Duration, move func(moved func()) error) error {
	stall, done := time.NewTimer(StallTimeout), make(chan error, 1)
	defer stall.Stop()
	moved := func() { stall.Reset(StallTimeout) }
	go func() { done <- panics.Do(where, func() error { return move(moved) }) }()
	var end <-chan time.Time
	if most > 0 {
		timer := time.NewTimer(most)
		defer timer.Stop()
		end = timer.C
	}
	select {
	case err := <-done:
		return err
	case <-stall.C:
		return ErrStalled
	case <-end:
		return ErrTooLong
	case <-stopped:
		return ErrStopped
	}
}
