// Package process runs the components of one orchestrator process as supervised goroutines.
//
// They are started together, and stopped in the opposite order of the list, each given time to
// finish. A component that ends by itself ends the process: its neighbours' state is not worth
// guessing at, and machined starts the process again at once. One that keeps nothing in this
// process, because it has one of its own (Child), is started again alone (Again). The package waits
// for nothing else: what a component needs, it waits for itself.
package process

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/orlop-os/orlop/orchestrator/component"
)

// grace is how long one component may take to stop. Two in a row stay below machined's patience
// with a process (machined/services.go, 20 s).
const grace = 8 * time.Second

type running struct {
	name string
	stop context.CancelFunc
	done chan error
}

// Run writes the components' files, starts them, and blocks until ctx is done (then it stops them
// and returns nil) or one of them ends (then it returns which one and why, for the process to end
// at once).
func Run(ctx context.Context, components []component.Component, announce component.Announce) error {
	for _, c := range components {
		if err := c.WriteFiles(); err != nil {
			return err
		}
	}
	ended := make(chan error, len(components))
	var started []running
	for _, c := range components {
		own, stop := context.WithCancel(context.WithoutCancel(ctx))
		r := running{name: c.Name, stop: stop, done: make(chan error, 1)}
		started = append(started, r)
		go func() {
			err := c.Run(own, announce)
			r.done <- err
			if own.Err() == nil {
				ended <- because(c.Name, err)
			}
		}()
	}
	select {
	case <-ctx.Done():
	case reason := <-ended:
		// The process ends here and now: what it owns survives a power cut, and waiting delays the
		// restart.
		return reason
	}
	var first error
	for i := len(started) - 1; i >= 0; i-- {
		if err := started[i].finish(); err != nil && first == nil {
			first = err
		}
	}
	return first
}

func because(name string, err error) error {
	if err == nil {
		return fmt.Errorf("%s ended by itself without a reason", name)
	}
	return fmt.Errorf("%s ended: %w", name, err)
}

// finish stops one component and waits for it.
func (r running) finish() error {
	r.stop()
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case err := <-r.done:
		if err != nil {
			return fmt.Errorf("%s: stopped with: %w", r.name, err)
		}
		return nil
	case <-timer.C:
		fmt.Fprintln(os.Stderr, stacks(r.name))
		return fmt.Errorf("%s: did not stop within %s; what it waits for is above", r.name, grace)
	}
}

// maxStacks bounds what is written about a component that hangs; machined keeps a service's last
// lines only.
const maxStacks = 64 << 10

// stacks are the stacks of the goroutines that have to do with a component: the only trace of why
// it does not stop.
func stacks(name string) string {
	all := make([]byte, 8<<20)
	all = all[:runtime.Stack(all, true)]
	var b strings.Builder
	for _, stack := range strings.Split(string(all), "\n\n") {
		if strings.Contains(stack, name) && b.Len()+len(stack) < maxStacks {
			b.WriteString(stack + "\n\n")
		}
	}
	return b.String()
}
