package main

import (
	"context"
	"errors"
	"sync"
)

// Errors of limiter.acquire.
var (
	errLimitReached       = errors.New("the limit is reached")
	errCallerLimitReached = errors.New("the limit of the caller is reached")
)

// limiter bounds concurrent operations, in total and per caller, so that a caller at its limit
// leaves some to the others.
type limiter struct {
	total, perCaller int

	mu       sync.Mutex
	running  int
	byCaller map[string]int // by caller
	freed    chan struct{}  // closed when an operation ends
}

func newLimiter(most, ofOne int) *limiter {
	return &limiter{total: most, perCaller: ofOne, byCaller: map[string]int{}, freed: make(chan struct{})}
}

// acquire starts an operation for a caller. It returns the function that ends the operation, or an
// error and a channel that is closed when an operation ends.
func (p *limiter) acquire(caller string) (release func(), freed <-chan struct{}, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.byCaller[caller] >= p.perCaller:
		return nil, p.freed, errCallerLimitReached
	case p.running >= p.total:
		return nil, p.freed, errLimitReached
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

// wait waits until acquire succeeds.
func (p *limiter) wait(ctx context.Context, caller string) (leave func(), err error) {
	for {
		leave, freed, why := p.acquire(caller)
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
