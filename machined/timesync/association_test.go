package timesync

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/orlop-os/orlop/machined/timesync/nts"
)

// TestAssociation checks when the client retains its keys, when it replaces them at once, and when
// it replaces them after several requests.
func TestAssociation(t *testing.T) {
	lost := errors.New("no answer")
	type request struct {
		authenticated bool
		cookies       int
		err           error
	}
	good, fails := request{true, 8, nil}, request{false, 7, lost}
	for _, c := range []struct {
		name     string
		requests []request
		keeps    bool
	}{
		{"answers", []request{good, good}, true},
		{"two lost answers", []request{fails, fails}, true},
		{"three lost answers", []request{fails, fails, fails}, false},
		{"lost answers between others", []request{fails, fails, good, fails, fails}, true},
		{"no cookie left", []request{{false, 0, lost}}, false},
		{"a NAK", []request{good, {false, 7, fmt.Errorf("server: %w", nts.ErrNAK)}}, false},
		{"a time outside the validity of the certificate", []request{{true, 8, fmt.Errorf("%w: expired", errWrongTime)}}, false},
		{"an authenticated refusal", []request{{true, 8, lost}, {true, 8, lost}, {true, 8, lost}, {true, 8, lost}}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			start := time.Now()
			var a association
			if err := a.wait(start); err != nil {
				t.Fatal(err)
			}
			a.exchanged(new(nts.Session), nil, start)
			var last error
			for _, r := range c.requests {
				a.answered(r.authenticated, r.cookies, r.err)
				last = r.err
			}
			if kept := a.session != nil; kept != c.keeps {
				t.Errorf("the client retains the keys: %t", kept)
			}
			if !c.keeps && (!errors.Is(a.wait(start), last) || a.wait(start.Add(exchanges.Min)) != nil) {
				t.Errorf("the next key exchange waits because of %v, and after the minimum delay because of %v; want %v, then nothing", a.wait(start), a.wait(start.Add(exchanges.Min)), last)
			}
		})
	}
}

// TestExchangeBackoff checks that the delay between key exchanges doubles while no answer is
// authenticated, also if the key exchanges themselves succeed.
func TestExchangeBackoff(t *testing.T) {
	failed := errors.New("refused")
	now := time.Now()
	var a association
	for i, want := range []time.Duration{4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024} {
		if i%2 == 0 {
			a.exchanged(nil, failed, now)
		} else {
			a.exchanged(new(nts.Session), nil, now)
			a.answered(false, 7, nts.ErrNAK)
		}
		if wait := a.next.Sub(now); wait != want*time.Second || a.wait(now) == nil {
			t.Fatalf("key exchange %d: the delay is %v, want %v s; its reason is %v", i, wait, int(want), a.wait(now))
		}
		now = a.next
		if err := a.wait(now); err != nil {
			t.Fatal(err)
		}
	}
	a.exchanged(new(nts.Session), nil, now)
	a.answered(true, 8, nil)
	a.exchanged(nil, failed, now)
	if wait := a.next.Sub(now); wait != exchanges.Min {
		t.Errorf("after an authenticated answer: the delay is %v", wait)
	}
}
