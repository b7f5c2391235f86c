package main

import (
	"context"
	"fmt"
	"os"

	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// maxReadCommands bounds concurrent orchestrator processes for read-only RPCs: each is a large
// program, and every reader can call as often as it likes.
const maxReadCommands = 2

// commands runs programs, among them the commands of the orchestrator.
type commands struct {
	reaper *supervise.Reaper
	reads  chan struct{} // one element per process of a read-only RPC
}

func newCommands() *commands {
	return &commands{reaper: supervise.NewReaper(nil), reads: make(chan struct{}, maxReadCommands)}
}

// read runs a command for an RPC that every reader can call: at most maxReadCommands
// run at a time, the others wait.
func (c *commands) read(ctx context.Context, uid uint32, command string, request any, files ...*os.File) ([]byte, error) {
	release, err := limits.Acquire(ctx, c.reads, command)
	if err != nil {
		return nil, err
	}
	defer release()
	return c.run(ctx, uid, command, request, files...)
}

// run runs a command of the orchestrator and returns its standard output, also on failure:
// the libraries of Kubernetes log to standard error, which is only part of the error.
func (c *commands) run(ctx context.Context, uid uint32, command string, request any, files ...*os.File) ([]byte, error) {
	program := supervise.Command{Args: []string{paths.Orchestrator, command}, Env: []string{}, UID: uid, SeparateStderr: true, Files: files}
	if request != nil {
		var err error
		if program.Stdin, err = nodespec.Encode(request); err != nil {
			return nil, fmt.Errorf("orchestrator: cannot encode the request of %s: %w", command, err)
		}
	}
	return c.reaper.RunCommand(ctx, program)
}
