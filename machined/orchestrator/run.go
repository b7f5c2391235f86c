package orchestrator

import (
	"context"
	"fmt"
	"os"

	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// maxReads is the number of processes for read-only RPCs that run at the same time. The program is
// large, and every reader can call these RPCs at any rate.
const maxReads = 2

// Runner runs the commands. All methods are safe for concurrent use.
type Runner struct {
	start func(context.Context, supervise.Command) ([]byte, error)
	reads chan struct{} // holds one element for each running process of a read-only RPC
}

// New returns a Runner. start runs a program until it exits, and returns its standard output
// (supervise.Reaper.RunCommand).
func New(start func(context.Context, supervise.Command) ([]byte, error)) *Runner {
	return &Runner{start: start, reads: make(chan struct{}, maxReads)}
}

// Read is Run for an RPC that every reader can call. At most maxReads of these commands run at a
// time; further calls wait until ctx ends.
func (r *Runner) Read(ctx context.Context, uid uint32, command string, request any, files ...*os.File) ([]byte, error) {
	release, err := limits.Acquire(ctx, r.reads, command)
	if err != nil {
		return nil, err
	}
	defer release()
	return r.Run(ctx, uid, command, request, files...)
}

// Run implements nodespec.Command. It returns the standard output of the command, also if the
// command fails. The error contains the end of the standard error, to which the libraries of
// Kubernetes log.
func (r *Runner) Run(ctx context.Context, uid uint32, command string, request any, files ...*os.File) ([]byte, error) {
	program := supervise.Command{Args: []string{paths.Orchestrator, command}, Env: []string{}, UID: uid, SeparateStderr: true, Files: files}
	if request != nil {
		var err error
		if program.Stdin, err = nodespec.Encode(request); err != nil {
			return nil, fmt.Errorf("orchestrator: cannot encode the request of %s: %w", command, err)
		}
	}
	return r.start(ctx, program)
}
