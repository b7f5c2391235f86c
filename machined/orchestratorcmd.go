package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// runCommand runs a command of the orchestrator in a process of its own as user uid (0: root), with
// request as its input (nil: none), and decodes its answer. The package comment of the orchestrator
// lists the commands with their input and output. The process gets files as descriptors from 3 on.
func runCommand[A any](ctx context.Context, m *machine, uid uint32, command string, request any, files ...*os.File) (answer A, err error) {
	text, err := m.orchestrator(ctx, uid, command, request, files...)
	if err != nil {
		return answer, err
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return answer, fmt.Errorf("the orchestrator's answer to %s cannot be read: %w", command, err)
	}
	return answer, nil
}

// maxReadCommands bounds concurrent orchestrator processes for read-only RPCs: each is a large
// program, and every reader can call as often as it likes.
const maxReadCommands = 2

// runReadCommand is runCommand for an RPC that every reader can call: at most maxReadCommands run
// at a time, the others wait.
func runReadCommand[A any](ctx context.Context, m *machine, command string, request any) (answer A, err error) {
	release, err := limits.Acquire(ctx, m.readCommands, command)
	if err != nil {
		return answer, err
	}
	defer release()
	return runCommand[A](ctx, m, paths.UserAPI, command, request)
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
