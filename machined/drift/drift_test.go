package drift

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// saidDrift is a domain with a drift that a test sets. It counts the calls of diff.
type saidDrift struct {
	mu    sync.Mutex
	lines []string
	err   error
	asked atomic.Int32
}

func (s *saidDrift) set(err error, lines ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines, s.err = lines, err
}

func (s *saidDrift) diff(context.Context) ([]string, error) {
	s.asked.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lines, s.err
}

// TestDrift checks the operations and the problem that Get returns for each domain. The revision
// increases only if the result changes. The field Since is the time of the first read with drift.
func TestDrift(t *testing.T) {
	host, disk := &saidDrift{}, &saidDrift{}
	// Each call of look clears readAt, so Get reads the drift again.
	d := newReader(Deps{Domains: []Source{{"disk", disk.diff}, {"host", host.diff}}}, 0, time.Minute)
	look := func(want string, revision uint64) []State {
		t.Helper()
		d.interval = time.Hour
		d.mu.Lock()
		d.readAt = time.Time{}
		d.mu.Unlock()
		states, got, err := d.Get(t.Context())
		text := ""
		for _, s := range states {
			text += fmt.Sprintf("%s %v %s;", s.Domain, s.Operations, s.Problem)
			if s.Operations == nil || s.Since.IsZero() != s.clean() {
				t.Errorf("%+v", s)
			}
		}
		if err != nil || text != want || got != revision {
			t.Errorf("got %s, revision %d, %v; want %s, %d", text, got, err, want, revision)
		}
		return states
	}
	look("disk [] ;host [] ;", 1)
	look("disk [] ;host [] ;", 1)
	host.set(nil, "set kernel parameter a", "set kernel parameter b")
	since := look("disk [] ;host [set kernel parameter a set kernel parameter b] ;", 2)[1].Since
	host.set(errors.New("and a link is missing"), "set kernel parameter b")
	disk.set(errors.New("/dev/vda: cannot examine: input/output error"))
	if later := look("disk [] /dev/vda: cannot examine: input/output error;host [set kernel parameter b] and a link is missing;", 3)[1].Since; !later.Equal(since) {
		t.Errorf("since %v, and then since %v", since, later)
	}
	disk.set(ErrAbsent)
	host.set(nil)
	look("host [] ;", 4)
	if n := disk.asked.Load(); n != 5 {
		t.Errorf("the drift of disk was read %d times, want 5", n)
	}
	for range 10 { // calls within the interval of an hour get the stored result
		if _, revision, err := d.Get(t.Context()); revision != 4 || err != nil {
			t.Errorf("%d, %v", revision, err)
		}
	}
	if n := disk.asked.Load(); n != 5 {
		t.Errorf("the drift of disk was read %d times after repeated calls, want 5", n)
	}
}

// TestDriftHangs checks that a domain with a hanging diff does not delay the callers. Until this
// diff returns, the domain has a problem, and its diff is not called again.
func TestDriftHangs(t *testing.T) {
	host, back, asked := &saidDrift{}, make(chan struct{}), atomic.Int32{}
	hangs := func(context.Context) ([]string, error) {
		if asked.Add(1) == 1 {
			<-back
		}
		return nil, nil
	}
	d := newReader(Deps{Domains: []Source{{"disk", hangs}, {"host", host.diff}}}, 0, time.Millisecond)
	first := func() string {
		d.interval = time.Hour
		d.readAt = time.Time{}
		states, _, err := d.Get(t.Context())
		if err != nil || len(states) != 2 {
			t.Fatalf("%v, %v", states, err)
		}
		return states[0].Problem
	}
	if got := first(); got != "unknown: no result within 1ms" {
		t.Errorf("%q", got)
	}
	d.timeout = time.Minute
	if got := first(); got != "unknown: an earlier read has not returned" || asked.Load() != 1 {
		t.Errorf("%q, the hanging diff was called %d times, want 1", got, asked.Load())
	}
	close(back)
	// The diff returns in another goroutine, after some time.
	for deadline := time.Now().Add(20 * time.Second); first() != ""; {
		if time.Now().After(deadline) {
			t.Fatal("the domain still has a problem after its diff has returned")
		}
	}
	leaving, leave := context.WithCancel(t.Context())
	leave()
	d.readAt = time.Time{}
	d.running = make(chan struct{})
	if _, _, err := d.Get(leaving); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that has canceled its call: %v", err)
	}
}

// TestDriftIsWatched checks that Next returns only after a change of the drift.
func TestDriftIsWatched(t *testing.T) {
	host := &saidDrift{}
	d := newReader(Deps{Domains: []Source{{"host", host.diff}}}, time.Millisecond, time.Minute)
	_, seen, err := d.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- d.Next(ctx, seen) }()
	for host.asked.Load() < 5 {
		select {
		case err := <-ended:
			t.Fatalf("Next returns without a change: %v", err)
		default:
		}
	}
	host.set(nil, "set kernel parameter a")
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if value, revision, err := d.Get(t.Context()); err != nil || revision != seen+1 || value[0].Operations[0] != "set kernel parameter a" {
		t.Errorf("%v, %d, %v", value, revision, err)
	}
}

// TestDriftOfAnotherConfiguration checks that a new configuration (another epoch) invalidates the
// stored drift before its interval has passed.
func TestDriftOfAnotherConfiguration(t *testing.T) {
	host, epoch := &saidDrift{}, atomic.Uint64{}
	d := newReader(Deps{Domains: []Source{{"host", host.diff}}}, time.Hour, time.Minute)
	d.deps.Epoch = epoch.Load
	look := func(want string) {
		t.Helper()
		states, _, err := d.Get(t.Context())
		if got := fmt.Sprint(states[0].Operations); err != nil || got != want {
			t.Errorf("got %s, %v; want %s", got, err, want)
		}
	}
	host.set(nil, "set kernel parameter a")
	look("[set kernel parameter a]")
	host.set(nil)
	look("[set kernel parameter a]") // the stored drift is less than an hour old
	epoch.Add(1)
	look("[]")
}
