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

// verdict is the answer about a token.
type verdict int

// The answers.
const (
	unknown         verdict = iota // no answer: an unreachable API server, or a limit
	admitted                       // it may read the metrics
	unauthenticated                // it is no valid token
	forbidden                      // it has no right to read the metrics
)

// errBusy is returned for a check that a limit prevents.
var errBusy = errors.New("too many tokens are checked at present; try again")

// tokens remembers which tokens are admitted. It stores hashes only.
type tokens struct {
	// review checks a token at the API server.
	review func(ctx context.Context, token string) (verdict, error)
	now    func() time.Time

	callers limits.Callers // limits the checks of tokens that are not known
	reviews chan struct{}

	mu    sync.Mutex
	known map[[sha256.Size]byte]known
}

// known is an admitted token.
type known struct {
	admitted time.Time // the last answer
	tried    time.Time // the last check
}

func newTokens(review func(ctx context.Context, token string) (verdict, error), now func() time.Time) *tokens {
	return &tokens{
		review: review, now: now, reviews: make(chan struct{}, maxReviews), known: map[[sha256.Size]byte]known{},
		callers: limits.Callers{Address: limits.Rates{Interval: time.Second, Burst: 8}, Network: limits.Rates{Interval: time.Second / 4, Burst: 16}},
	}
}

// check returns the answer about the token of a caller, ADDRESS:PORT. An error says why it is
// unknown.
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
	// Many unknown tokens do not delay the check of a known one.
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

// addLocked records an admitted token. A full record drops the token with the oldest answer.
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
