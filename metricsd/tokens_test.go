package metricsd

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

// TestTokens checks for how long the result for a token is cached.
func TestTokens(t *testing.T) {
	const min = time.Minute
	type step struct {
		after  time.Duration // time since the previous step
		answer verdict       // verdict of the API server; unknown if the server is unreachable
		want   verdict
		asked  bool // whether the API server is called
	}
	for name, steps := range map[string][]step{
		"a fresh answer":              {{0, admitted, admitted, true}, {freshTime - 1, forbidden, admitted, false}, {1, forbidden, forbidden, true}},
		"a rejection is not stored":   {{0, forbidden, forbidden, true}, {1, admitted, admitted, true}, {1, forbidden, admitted, false}},
		"an invalid token":            {{0, unauthenticated, unauthenticated, true}, {1, unauthenticated, unauthenticated, true}},
		"never admitted, no answer":   {{0, unknown, unknown, true}, {1, admitted, admitted, true}},
		"no answer after admission":   {{0, admitted, admitted, true}, {2 * min, unknown, admitted, true}, {recheckInterval - 1, unknown, admitted, false}, {1, unknown, admitted, true}},
		"no answer for staleTime":     {{0, admitted, admitted, true}, {staleTime - 1, unknown, admitted, true}, {1, unknown, unknown, true}, {1, unknown, unknown, true}},
		"a rejection after no answer": {{0, admitted, admitted, true}, {2 * min, unknown, admitted, true}, {recheckInterval, forbidden, forbidden, true}, {1, unknown, unknown, true}},
		"admitted again":              {{0, admitted, admitted, true}, {2 * min, admitted, admitted, true}, {freshTime - 1, unknown, admitted, false}},
	} {
		t.Run(name, func(t *testing.T) {
			now, asked, answer := time.Unix(1790000000, 0), 0, unknown
			tokens := newTokens(func(context.Context, string) (verdict, error) {
				asked++
				if answer == unknown {
					return unknown, errors.New("unreachable")
				}
				return answer, nil
			}, func() time.Time { return now })
			for i, s := range steps {
				now, asked, answer = now.Add(s.after), 0, s.answer
				got, err := tokens.check(t.Context(), "token", "10.0.0.5:1000")
				if got != s.want || asked > 0 != s.asked || (err != nil) != (s.want == unknown) {
					t.Errorf("step %d: %v, %v, asked %d times; want %+v", i, got, err, asked, s)
				}
			}
		})
	}
}

// TestTokenFlood checks that many unknown tokens use up only the limit of their own address, and
// that a cached token can still be checked.
func TestTokenFlood(t *testing.T) {
	now, asked := time.Unix(1790000000, 0), 0
	tokens := newTokens(func(_ context.Context, token string) (verdict, error) {
		asked++
		if token == "good" {
			return admitted, nil
		}
		return unauthenticated, nil
	}, func() time.Time { return now })
	check := func(token, peer string) (verdict, error) { return tokens.check(t.Context(), token, peer) }
	if got, err := check("good", "10.0.0.5:1"); got != admitted {
		t.Fatalf("a valid token before the flood: %v, %v", got, err)
	}
	for i := range 1000 {
		_, _ = check(fmt.Sprint("bad", i), "10.0.0.5:1")
	}
	if asked > 100 {
		t.Errorf("the API server got %d requests", asked)
	}
	if _, err := check("bad", "10.0.0.5:1"); !errors.Is(err, errBusy) {
		t.Errorf("after the flood: %v", err)
	}
	now = now.Add(freshTime)
	if got, err := check("good", "10.0.0.5:1"); got != admitted || err != nil {
		t.Errorf("the known token: %v, %v", got, err)
	}
	if got, err := check("bad", "10.0.0.6:1"); got != unauthenticated || err != nil {
		t.Errorf("another address: %v, %v", got, err)
	}
}

// TestManyTokens checks that the cache is bounded and drops the token with the oldest result.
func TestManyTokens(t *testing.T) {
	now, asked := time.Unix(1790000000, 0), 0
	tokens := newTokens(func(context.Context, string) (verdict, error) { asked++; return admitted, nil }, func() time.Time { return now })
	for i := range maxKnown + 1 {
		now = now.Add(time.Millisecond)
		if got, err := tokens.check(t.Context(), fmt.Sprint(i), fmt.Sprintf("10.0.%d.5:1", i)); got != admitted {
			t.Fatalf("token %d: %v, %v", i, got, err)
		}
	}
	if len(tokens.known) != maxKnown {
		t.Errorf("%d tokens are known", len(tokens.known))
	}
	asked = 0
	_, _ = tokens.check(t.Context(), fmt.Sprint(maxKnown), "10.0.0.5:1")
	if asked != 0 {
		t.Error("the newest token was dropped")
	}
	_, _ = tokens.check(t.Context(), "0", "10.0.0.5:1")
	if asked != 1 {
		t.Error("the oldest token was not dropped")
	}
}
