package transfer

import (
	"errors"
	"time"

	"github.com/orlop-os/orlop/pkg/panics"
)

// StallTimeout is the time without data after which a transfer between a machine and a caller ends.
// A client notices a lost connection later (pkg/client), so its next attempt never meets its former
// call.
const StallTimeout = 20 * time.Second

// Errors of Watch.
var (
	ErrStalled = errors.New("the transfer has stalled")
	ErrTooLong = errors.New("the transfer took too long")
	ErrStopped = errors.New("the machine is shutting down")
)

// Watch runs move, which calls moved after each piece of data, and returns its error. It returns
// earlier with ErrStalled if no piece was moved for StallTimeout, with ErrTooLong after most (0: no
// limit), and with ErrStopped when stopped is closed. move can be blocked in a stream then; the
// return of the call ends the stream, and with it move. where names the transfer for a panic.
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
