package main

import (
	"context"
	"errors"
	"sync"
)

// Reason there is no place.
var (
	errAllTaken = errors.New("all places are taken")
	errOwnTaken = errors.New("the caller has all places that he may have")
)

// places are what so many may do at once in all, and each caller fewer times: whoever takes all
// that he may leaves some to the others.
type places struct {
	most, ofOne int

	mu    sync.Mutex
	all   int
	of    map[string]int // by caller
	freed chan struct{}  // closed when one is given back
}

func newPlaces(most, ofOne int) *places {
	return &places{most: most, ofOne: ofOne, of: map[string]int{}, freed: make(chan struct{})}
}

// take takes a place for a caller, and returns what gives it back; or why there is none, and what
// is closed when that may have changed.
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

// wait takes a place as soon as there is one.
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
