package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// ask has the orchestrator answer one question, in a process of its own as the user uid (0: root).
// The commands, and what each reads and writes, stand in the orchestrator's package comment. A nil
// question is none. Files are open there as descriptors from 3 on.
func ask[A any](ctx context.Context, m *machine, uid uint32, command string, question any, files ...*os.File) (answer A, err error) {
	text, err := m.orchestrator(ctx, uid, command, question, files...)
	if err != nil {
		return answer, err
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return answer, fmt.Errorf("the orchestrator's answer to %s cannot be read: %w", command, err)
	}
	return answer, nil
}

// atOnce is how many questions of those who only look have a process at the same time: each is a
// large program, and whoever may look may ask as often as he likes.
const atOnce = 2

// askInTurn is ask for what anybody may ask who may look: at most atOnce at a time, the others
// wait.
func askInTurn[A any](ctx context.Context, m *machine, command string, question any) (answer A, err error) {
	done, err := turn(ctx, m.askers, command)
	if err != nil {
		return answer, err
	}
	defer done()
	return ask[A](ctx, m, paths.UserAPI, command, question)
}

// turn waits for one of some places, until ctx is done. What says who waits; done gives the place
// back.
func turn(ctx context.Context, places chan struct{}, what string) (done func(), err error) {
	select {
	case places <- struct{}{}:
		return func() { <-places }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: others ask at the same time, and the time was up before it was its turn: %w", what, context.Cause(ctx))
	}
}

// orchestrator runs one of the orchestrator's commands to its end and returns what it wrote to
// standard output, even when it fails: Kubernetes' libraries log to standard error, which is only
// part of the error.
func (m *machine) orchestrator(ctx context.Context, uid uint32, command string, question any, files ...*os.File) ([]byte, error) {
	c := supervise.Command{Args: []string{paths.Orchestrator, command}, Env: []string{}, UID: uid, OwnNamespaces: true, Files: files}
	if question != nil {
		var err error
		if c.Stdin, err = json.Marshal(question); err != nil {
			return nil, fmt.Errorf("orchestrator: cannot describe the question to %s: %w", command, err)
		}
	}
	return m.reaper.RunCommand(ctx, c)
}
