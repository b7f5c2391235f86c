package reconcile

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// maxRounds is how often Converge reads again after its operations before it says that they do not
// lead anywhere. The second round should find nothing to do; a few more are allowed because doing
// one thing may make another visible.
const maxRounds = 8

// Diff reads what is and returns what is left to do, in order; nothing when all is as it should be.
type Diff func(ctx context.Context) ([]Op, error)

// Report says that one operation was done or failed, or, with an empty Op, that it cannot be said
// what has to be done.
type Report struct {
	Domain string        // Config.Name
	Op     string        // as Op.String says it
	Err    error         // nil when it was done
	Took   time.Duration // how long it took
}

// String is a line for the log: "network: set link eth0 up" or "network: cannot set link eth0 up:
// no such device".
func (r Report) String() string {
	switch {
	case r.Err == nil:
		return r.Domain + ": " + r.Op
	case r.Op == "":
		return fmt.Sprintf("%s: %v", r.Domain, r.Err)
	}
	return fmt.Sprintf("%s: cannot %s: %v", r.Domain, r.Op, r.Err)
}

// Converge reads, does what is left to do, and reads again until nothing is left. The error says
// which operations failed, or which come again and again.
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

// Config says what is brought to what is wanted.
type Config struct {
	Name   string // the domain, "network"
	Diff   Diff
	Report func(Report) // may be nil
	// KeepGoing does the other operations when one has failed: for domains whose operations do not
	// build on each other.
	KeepGoing bool
}
