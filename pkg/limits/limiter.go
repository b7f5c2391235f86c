package limits

import (
	"context"
	"errors"
	"maps"
	"sync"
)

// Errors of Limiter.Acquire.
var (
	ErrReached       = errors.New("the limit is reached")
	ErrCallerReached = errors.New("the limit of the caller is reached")
)

// Limiter bounds concurrent operations, in total and per caller. Because of the limit per caller, a
// single caller cannot use up the total.
type Limiter struct {
	total, perCaller int

	mu       sync.Mutex
	running  int            // in total
	byCaller map[string]int // running operations of each caller
	freed    chan struct{}  // closed at the end of each operation, and then replaced
}

// NewLimiter returns a Limiter that admits at most total operations at a time, and at most
// perCaller operations of the same caller.
func NewLimiter(total, perCaller int) *Limiter {
	return &Limiter{total: total, perCaller: perCaller, byCaller: map[string]int{}, freed: make(chan struct{})}
}

// Acquire starts an operation for a caller and returns the function that ends it. If a limit is
// reached, Acquire returns ErrReached or ErrCallerReached, and a channel that is closed when the
// next operation ends.
func (p *Limiter) Acquire(caller string) (release func(), freed <-chan struct{}, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.byCaller[caller] >= p.perCaller:
		return nil, p.freed, ErrCallerReached
	case p.running >= p.total:
		return nil, p.freed, ErrReached
	}
	p.running++
	p.byCaller[caller]++
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.running--
		if p.byCaller[caller]--; p.byCaller[caller] == 0 {
			delete(p.byCaller, caller)
		}
		close(p.freed)
		p.freed = make(chan struct{})
	}), nil, nil
}

// Running returns the number of running operations, in total and of each caller.
func (p *Limiter) Running() (total int, byCaller map[string]int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running, maps.Clone(p.byCaller)
}

// Wait starts an operation as Acquire does. If a limit is reached, it waits until an operation ends
// and tries again. It returns the function that ends the operation. It fails with the cause of ctx
// when ctx ends first.
func (p *Limiter) Wait(ctx context.Context, caller string) (leave func(), err error) {
	for {
		leave, freed, why := p.Acquire(caller)
		if why == nil {
			return leave, nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
