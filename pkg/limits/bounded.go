package limits

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/orlop-os/orlop/pkg/panics"
)

// Bounded limits the time of a read that can hang, for example on a disk that does not answer: a
// caller gets an error in time, and only the reads that are on their way when it begins to hang
// wait for their end. The zero value is ready for use.
type Bounded struct {
	mu      sync.Mutex
	running int // reads that have not returned
	late    int // those of them that have not returned in time
}

// maxReads bounds the reads that run at a time. A read that hangs may hold a thread, and its caller
// may have left: a caller that starts and cancels reads would end the process by their number.
const maxReads = 256

// StateTimeout is the time limit of an access to STATE or DATA on which a caller waits. Less than a
// second is usual.
const StateTimeout = 5 * time.Second

// ErrUnknown is returned if a read has no result in time.
var ErrUnknown = errors.New("unknown")

// Read returns the result of a read. It fails with ErrUnknown after the time most, and at once
// while an earlier read is late or maxReads run. The name is for the record of a panic.
func Read[T any](ctx context.Context, b *Bounded, name string, most time.Duration, read func(context.Context) (T, error)) (T, error) {
	var none T
	done, expire, err := b.start(most)
	if err != nil {
		return none, err
	}
	type result struct {
		value T
		err   error
	}
	limited, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	results := make(chan result, 1)
	go func() {
		var r result
		r.err = panics.Do(name, func() (err error) { r.value, err = read(limited); return err })
		done()
		results <- r
	}()
	select {
	case r := <-results:
		return r.value, r.err
	case <-limited.Done():
	}
	if err := ctx.Err(); err != nil {
		return none, err
	}
	expire() // the timer may fire a moment later
	return none, fmt.Errorf("%w: no result within %v", ErrUnknown, most)
}

// start begins a read, or returns ErrUnknown. It counts the read as late after the time most,
// whether or not its caller still waits, or when expire is called. done ends the read.
func (b *Bounded) start(most time.Duration) (done, expire func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.late > 0:
		return nil, nil, fmt.Errorf("%w: an earlier read has not returned", ErrUnknown)
	case b.running >= maxReads:
		return nil, nil, fmt.Errorf("%w: %d reads run already", ErrUnknown, b.running)
	}
	b.running++
	var ended, late bool
	expire = func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if !ended && !late {
			late = true
			b.late++
		}
	}
	timer := time.AfterFunc(most, expire)
	return func() {
		timer.Stop()
		b.mu.Lock()
		defer b.mu.Unlock()
		b.running--
		if ended = true; late {
			b.late--
		}
	}, expire, nil
}
