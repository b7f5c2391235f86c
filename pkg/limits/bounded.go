package limits

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/orlop-os/orlop/pkg/panics"
)

// Bounded limits the time that a caller waits for a read that can hang, for example on a disk that
// does not respond. While a read is late, new reads fail at once, so the number of hanging reads
// does not grow. The zero value is ready for use.
type Bounded struct {
	mu      sync.Mutex
	running int // reads that have not returned
	late    int // running reads that are over their time limit
}

// maxReads is the maximum number of concurrent reads of a Bounded. A read that hangs can occupy a
// thread even after its caller has canceled it. Without this limit, a caller that starts and
// cancels reads could exhaust the threads of the process.
const maxReads = 256

// StateTimeout is the time limit for an access to STATE or DATA that a caller waits for. An access
// usually takes less than a second.
const StateTimeout = 5 * time.Second

// ErrUnknown is the error of Read if the read was late or could not start.
var ErrUnknown = errors.New("unknown")

// Read runs the function read on a new goroutine and returns its result. It fails with ErrUnknown
// if there is no result after the time `most`, and with the error of ctx if ctx ends first. While
// an earlier read of b is late, or maxReads reads run, it fails with ErrUnknown and does not run
// read. name is the name of the task in the record of a panic.
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
	expire() // the timer of start may fire a moment later
	return none, fmt.Errorf("%w: no result within %v", ErrUnknown, most)
}

// start counts a new read, or returns ErrUnknown if the read must not start. The caller calls done
// at the end of the read. The read is late after the time `most`, or after a call of expire, even
// if its caller no longer waits.
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
