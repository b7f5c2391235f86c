// Package process runs the components of an orchestrator process as supervised goroutines.
//
// All components start together. They stop one after the other, in the reverse order of the list,
// and each has a limited time to stop. A component that ends by itself ends the process, because
// the state of the other components is then unknown. machined restarts the process at once. A
// component that runs a child process (Child) has no state in this process, so RestartLoop restarts
// only this component. The package does not order the starts: each component waits for its own
// dependencies.
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

// grace is the longest time that a component may take to stop. Two components that both take this
// time stay below machined's timeout for a process (machined/nodeplan/services.go, 20 s).
const grace = 8 * time.Second

type running struct {
	name string
	stop context.CancelFunc
	done chan error
}

// Run writes the files of the components, starts the components, and waits until ctx is done or a
// component ends. When ctx is done, Run stops the components and returns the first error of a stop.
// When a component ends, Run returns an error with its name and the cause, and the process must
// exit at once.
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
		// The process exits without stopping the other components. Their data survive a power cut,
		// and waiting would delay the restart.
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

// The function because returns the error for a component that has ended by itself.
func because(name string, err error) error {
	if err == nil {
		return fmt.Errorf("%s ended by itself without an error", name)
	}
	return fmt.Errorf("%s ended: %w", name, err)
}

// finish stops a component and waits for its end. It returns an error if the component ends with an
// error or not within grace.
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
		return fmt.Errorf("%s: did not stop within %s; its stacks are above", r.name, grace)
	}
}

// maxStacks bounds the output about a component that does not stop, in bytes. machined retains only
// the last lines of a service.
const maxStacks = 64 << 10

// stacks returns the stacks of those goroutines that mention the name of a component. They are the
// only trace of the reason why the component does not stop.
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
