package main

import (
	"context"
	"errors"
	"sync"
)

// Errors of limiter.acquire.
var (
	errAllTaken = errors.New("all places are taken")
	errOwnTaken = errors.New("the caller has all places that he may have")
)

// limiter bounds concurrent operations, in total and per caller, so that a caller at its limit
// leaves some to the others.
type places struct {
	most, ofOne int

	mu    sync.Mutex
	all   int
	of    map[string]int // by caller
	freed chan struct{}  // closed when an operation ends
}

func newPlaces(most, ofOne int) *places {
	return &places{most: most, ofOne: ofOne, of: map[string]int{}, freed: make(chan struct{})}
}

// acquire starts an operation for a caller. It returns the function that ends the operation, or an
// error and a channel that is closed when an operation ends.
func (p *places) take(who string) (leave func(), freed <-chan struct{}, why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.of[who] >= p.ofOne:
		return nil, p.freed, errOwnTaken
	case p.all >= p.most:
		return nil, p.freed, errAllTaken
	}
	p.all++
	p.of[who]++
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.all--
		if p.of[who]--; p.of[who] == 0 {
			delete(p.of, who)
		}
		close(p.freed)
		p.freed = make(chan struct{})
	}), nil, nil
}

// wait waits until acquire succeeds.
func (p *places) wait(ctx context.Context, who string) (leave func(), err error) {
	for {
		leave, freed, why := p.take(who)
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
