package metricsd

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/orlop-os/orlop/pkg/limits"
)

// verdict is the result of the check of a token.
type verdict int

// The results of a check.
const (
	unknown         verdict = iota // no result: no API server, or a limit
	admitted                       // may read the metrics
	unauthenticated                // is not valid
	forbidden                      // is valid, but has no right to read the metrics
)

// errBusy means that a limit prevents the check of a token.
var errBusy = errors.New("too many tokens are checked at present; try again")

// tokens is the cache of admitted tokens. It stores only their hashes.
type tokens struct {
	// review checks a token at the API server.
	review func(ctx context.Context, token string) (verdict, error)
	now    func() time.Time

	callers limits.Callers // limits the checks of tokens that are not cached
	reviews chan struct{}

	mu    sync.Mutex
	known map[[sha256.Size]byte]known
}

// known is the cache entry of an admitted token.
type known struct {
	admitted time.Time // time of the last check with a result
	tried    time.Time // time of the last check
}

func newTokens(review func(ctx context.Context, token string) (verdict, error), now func() time.Time) *tokens {
	return &tokens{
		review: review, now: now, reviews: make(chan struct{}, maxReviews), known: map[[sha256.Size]byte]known{},
		callers: limits.Callers{Address: limits.Rates{Interval: time.Second, Burst: 8}, Network: limits.Rates{Interval: time.Second / 4, Burst: 16}},
	}
}

// check returns the verdict about the token of the caller at peer (ADDRESS:PORT). If the verdict is
// unknown, the error says why.
func (t *tokens) check(ctx context.Context, token, peer string) (verdict, error) {
	key, now := sha256.Sum256([]byte(token)), t.now()
	t.mu.Lock()
	have, isKnown := t.known[key]
	age := now.Sub(have.admitted)
	if isKnown && (age < freshTime || age < staleTime && now.Sub(have.tried) < recheckInterval) {
		t.mu.Unlock()
		return admitted, nil
	}
	if isKnown {
		have.tried = now
		t.known[key] = have
	}
	t.mu.Unlock()
	// Only tokens that are not cached are limited here, so many unknown tokens do not delay the
	// check of a cached token.
	if !isKnown && !t.callers.Allow(peer) {
		return unknown, errBusy
	}
	got, err := t.ask(ctx, token)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case got == admitted:
		t.addLocked(key, now)
	case got == unknown && isKnown && age < staleTime:
		return admitted, nil
	case got != unknown || age >= staleTime:
		delete(t.known, key)
	}
	return got, err
}

func (t *tokens) ask(ctx context.Context, token string) (verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	release, err := limits.Acquire(ctx, t.reviews, "check of a token")
	if err != nil {
		return unknown, err
	}
	defer release()
	got, err := t.review(ctx, token)
	if err != nil {
		return unknown, fmt.Errorf("the token cannot be checked: %w", err)
	}
	return got, nil
}

// addLocked adds an admitted token to the cache. If the cache is full, it drops the token with the
// oldest result.
func (t *tokens) addLocked(key [sha256.Size]byte, now time.Time) {
	if _, there := t.known[key]; !there && len(t.known) >= maxKnown {
		oldest := key
		for k, v := range t.known {
			if have, found := t.known[oldest]; !found || v.admitted.Before(have.admitted) {
				oldest = k
			}
		}
		delete(t.known, oldest)
	}
	t.known[key] = known{admitted: now, tried: now}
}
