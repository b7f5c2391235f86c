package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// runCommand runs a command of the orchestrator and decodes its answer (nodespec.Run).
func runCommand[A any](ctx context.Context, m *machine, uid uint32, command string, request any, files ...*os.File) (A, error) {
	return nodespec.Run[A](ctx, m.orchestrator, uid, command, request, files...)
}

// maxReadCommands bounds concurrent orchestrator processes for read-only RPCs: each is a large
// program, and every reader can call as often as it likes.
const maxReadCommands = 2

// readOrchestrator runs a command for an RPC that every reader can call: at most maxReadCommands
// run at a time, the others wait.
func (m *machine) readOrchestrator(ctx context.Context, uid uint32, command string, request any, files ...*os.File) ([]byte, error) {
	release, err := limits.Acquire(ctx, m.readCommands, command)
	if err != nil {
		return nil, err
	}
	defer release()
	return m.orchestrator(ctx, uid, command, request, files...)
}

// orchestrator runs a command of the orchestrator and returns its standard output, also on failure:
// the libraries of Kubernetes log to standard error, which is only part of the error.
func (m *machine) orchestrator(ctx context.Context, uid uint32, command string, request any, files ...*os.File) ([]byte, error) {
	c := supervise.Command{Args: []string{paths.Orchestrator, command}, Env: []string{}, UID: uid, SeparateStderr: true, Files: files}
	if request != nil {
		var err error
		if c.Stdin, err = json.Marshal(request); err != nil {
			return nil, fmt.Errorf("orchestrator: cannot encode the request of %s: %w", command, err)
		}
	}
	return m.reaper.RunCommand(ctx, c)
}
