package reconcile

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/cell"
)

// maxRounds is how often a loop reads again after its operations before it says that they do not lead anywhere. The
// second round should find nothing to do; a few more are allowed because doing one thing may make another visible.
const maxRounds = 8

// Diff reads what is and returns what is left to do, in order; nothing when all is as it should be.
type Diff func(ctx context.Context) ([]Op, error)

// Report says that one operation was done or failed, or, with an empty Op, that it cannot be said what has to be done.
type Report struct {
	Domain string        // the loop's name
	Op     string        // as Op.String says it
	Err    error         // nil when it was done
	Took   time.Duration // how long it took
}

// String is a line for the log: "network: set link eth0 up" or "network: cannot set link eth0 up: no such device".
func (r Report) String() string {
	switch {
	case r.Err == nil:
		return r.Domain + ": " + r.Op
	case r.Op == "":
		return fmt.Sprintf("%s: %v", r.Domain, r.Err)
	}
	return fmt.Sprintf("%s: cannot %s: %v", r.Domain, r.Op, r.Err)
}

// Converge reads, does what is left to do, and reads again until nothing is left. The error says which operations
// failed, or which come again and again.
func Converge(ctx context.Context, c Config) error {
	var last []Op
	for range maxRounds {
		ops, err := c.Diff(ctx)
		if err != nil {
			c.report(Report{Domain: c.Name, Err: err})
			return fmt.Errorf("%s: %w", c.Name, err)
		}
		if len(ops) == 0 {
			return nil
		}
		if err := c.do(ctx, ops); err != nil {
			return err
		}
		last = ops
	}
	return fmt.Errorf("%s: does not settle; after %d rounds this is still to do: %s", c.Name, maxRounds, strings.Join(Print(last), "; "))
}

// do does the operations in order, up to the first failure or all that can be done.
func (c Config) do(ctx context.Context, ops []Op) error {
	var failures []error
	for _, op := range ops {
		start := time.Now()
		err := ctx.Err()
		if err == nil {
			err = op.Do(ctx)
		}
		c.report(Report{Domain: c.Name, Op: op.String(), Err: err, Took: time.Since(start)})
		if err != nil {
			failures = append(failures, fmt.Errorf("%s: cannot %s: %w", c.Name, op, err))
			if !c.KeepGoing || ctx.Err() != nil {
				break
			}
		}
	}
	return errors.Join(failures...)
}

func (c Config) report(r Report) {
	if c.Report != nil {
		c.Report(r)
	}
}

// Print returns the operations as lines: the dry run.
func Print(ops []Op) []string {
	lines := make([]string, len(ops))
	for i, op := range ops {
		lines[i] = op.String()
	}
	return lines
}

// Status is where a loop stands.
type Status struct {
	Settled bool   `json:"settled"`         // the last look found nothing left to do
	Problem string `json:"problem"`         // why not, or empty
	Rounds  uint64 `json:"rounds"`          // how often it was made to look
	Retry   string `json:"retry,omitempty"` // how long it waits before it tries again
}

// Config says what a loop does. Converge uses Name, Diff, Report and KeepGoing only.
type Config struct {
	Name   string       // the domain, "network"
	Diff   Diff         // called from the loop's goroutine only
	Report func(Report) // may be nil; called from the loop's goroutine
	// KeepGoing does the other operations when one has failed: for domains whose operations do not build on each other.
	KeepGoing bool
	// First and Max bound the wait before a failure is tried again: First (0 for 1 s), then twice as long each time up
	// to Max (0 for 30 s). Being woken ends the wait.
	First, Max time.Duration
	// Every makes the loop look also when nobody wakes it; 0 for never.
	Every time.Duration
}

// Loop brings the machine to what is wanted, and again whenever it is woken. Make it with NewLoop and run Run.
type Loop struct {
	config Config
	wanted *cell.Cell[uint64] // grows with every Wake
	status *cell.Cell[outcome]
	public *cell.Cell[Status]
}

// outcome is the result of the round that answers every Wake up to and including number wanted.
type outcome struct {
	wanted uint64
	err    error
}

// NewLoop returns a loop that has not looked yet.
func NewLoop(config Config) *Loop {
	if config.First == 0 {
		config.First = time.Second
	}
	if config.Max == 0 {
		config.Max = 30 * time.Second
	}
	return &Loop{config: config, wanted: cell.New(uint64(0)), status: cell.New(outcome{}), public: cell.New(Status{})}
}

// Wake makes the loop look again soon. It never blocks; several calls may be answered by one look.
func (l *Loop) Wake() { l.wanted.Update(func(n uint64) uint64 { return n + 1 }) }

// Status returns the cell that says where the loop stands.
func (l *Loop) Status() *cell.Cell[Status] { return l.public }

// Sync wakes the loop and waits until it has looked and done what was left to do. It returns the failure of that
// attempt (the loop goes on trying), or the context's error.
func (l *Loop) Sync(ctx context.Context) error {
	l.Wake()
	mine, _ := l.wanted.Get()
	result, err := cell.Wait(ctx, l.status, func(o outcome) bool { return o.wanted >= mine })
	if err != nil {
		return fmt.Errorf("%s: not settled yet: %w", l.config.Name, err)
	}
	return result.err
}

// Run looks at once, and again whenever it is woken, after failures, and every Config.Every, until the context ends.
func (l *Loop) Run(ctx context.Context) {
	wakes := l.wanted.Watch()
	delay := l.config.First
	for rounds := uint64(1); ctx.Err() == nil; rounds++ {
		wanted := wakes.Take()
		err := Converge(ctx, l.config)
		wait := l.config.Every
		status := Status{Settled: err == nil, Rounds: rounds}
		if err == nil {
			delay = l.config.First
		} else {
			wait = delay
			delay = min(2*delay, l.config.Max)
			status.Problem, status.Retry = err.Error(), wait.String()
		}
		l.public.Set(status)
		l.status.Set(outcome{wanted, err})
		if !l.sleep(ctx, wait, wakes) {
			return
		}
	}
}

// sleep waits until the loop is woken or the time is over (0 for never), and says whether to go on.
func (l *Loop) sleep(ctx context.Context, wait time.Duration, wakes *cell.Watcher[uint64]) bool {
	var over <-chan time.Time
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-wakes.Changed():
	case <-over:
	case <-ctx.Done():
		return false
	}
	return true
}
