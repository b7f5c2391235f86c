package reconcile

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// maxRounds is the maximum number of rounds of Converge. The second round should find no operation.
// More rounds are permitted, because an operation can make another operation necessary.
const maxRounds = 8

// Diff reads the actual state and returns the operations to the desired state, in order. It returns
// none if the actual state is the desired state.
type Diff func(ctx context.Context) ([]Op, error)

// Report is the result of an operation. If Op is empty, Diff has failed with Err.
type Report struct {
	Domain string        // Config.Name
	Op     string        // text of the operation (Op.String)
	Err    error         // nil after a success
	Took   time.Duration // duration of the operation
}

// String returns a line for the log: "network: set link eth0 up" or "network: cannot set link eth0
// up: no such device".
func (r Report) String() string {
	switch {
	case r.Err == nil:
		return r.Domain + ": " + r.Op
	case r.Op == "":
		return fmt.Sprintf("%s: %v", r.Domain, r.Err)
	}
	return fmt.Sprintf("%s: cannot %s: %v", r.Domain, r.Op, r.Err)
}

// Kind returns the kind of the event for this report: "operation" or "failure".
func (r Report) Kind() string {
	if r.Err != nil {
		return "failure"
	}
	return "operation"
}

// Converge runs Diff and performs the operations, and repeats both until Diff returns no operation.
// It fails if Diff or an operation fails. It also fails after maxRounds rounds, with the operations
// that remain.
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
	return fmt.Errorf("%s: does not converge; remaining operations after %d rounds: %s", c.Name, maxRounds, strings.Join(Print(last), "; "))
}

// do performs the operations in order. It stops at the first failure, or performs all of them with
// KeepGoing.
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

// Print returns the texts of the operations for a dry run.
func Print(ops []Op) []string {
	lines := make([]string, len(ops))
	for i, op := range ops {
		lines[i] = op.String()
	}
	return lines
}

// Config describes a domain for Converge.
type Config struct {
	Name   string // name of the domain, for example "network"
	Diff   Diff
	Report func(Report) // receives each result; may be nil
	// KeepGoing means that do performs the remaining operations after a failure. It is for domains
	// with independent operations.
	KeepGoing bool
}
